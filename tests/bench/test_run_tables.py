"""What a Markdown file says of whole runs is what their records say."""

import tomllib
from functools import cache
from pathlib import Path

import pytest

from bench.errors import UserError
from bench.numbers import with_numbers
from bench.run_tables import Source
from harness.schema.run import Run
from tests.reports.small_runs import a_case, a_run, on_gpu, timed, without


def written(folder: Path, definition: str) -> list[list[str]]:
    """The cells of a table's rows below its head."""
    source_of = cache(lambda name: Source.of(Run.open(folder / name)))
    text = with_numbers("<!-- table t -->\n<!-- end -->\n", {"t": tomllib.loads(definition)}, source_of)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_run_is_told_by_its_records(tmp_path):
    few = timed(a_case(128), 20, samples=3, at="2026-11-21T05:10:00+00:00")
    a_run(tmp_path / "one", timed(a_case(64), 10), few, without(a_case(256)))
    asked = 'runs = [{ run = "one", note = "figure 15" }]'
    assert written(tmp_path, asked) == [
        ["`one`", "H100 (12345678)", "2026-11-21 04:50 to 05:10", "aaaaaaaa", "2 of 3; 1 few samples", "figure 15"]
    ]


def test_a_run_of_two_days_and_two_commits_says_so(tmp_path):
    later = timed(a_case(128), 20, on_gpu(commit="b" * 40), at="2026-11-22T05:10:00+00:00")
    a_run(tmp_path / "one", timed(a_case(64), 10), later)
    (row,) = written(tmp_path, '[[runs]]\nrun = "one"')
    assert row[2:4] == ["2026-11-21 04:50 to 2026-11-22 05:10", "2 commits"]


def test_a_commit_with_changes_is_another_one(tmp_path):
    changed = timed(a_case(128), 20, on_gpu(dirty=True))
    a_run(tmp_path / "one", timed(a_case(64), 10), changed)
    (row,) = written(tmp_path, '[[runs]]\nrun = "one"')
    assert row[3] == "2 commits"


def test_two_runs_are_apart_by_their_times_a_token(tmp_path):
    cases = [a_case(64), a_case(128), a_case(256), a_case(512, phase="generate")]
    a_run(tmp_path / "a", *(timed(case, 10) for case in cases))
    a_run(tmp_path / "b", *(timed(case, ms) for case, ms in zip(cases, (10.05, 9.802, 9.6, 12), strict=True)))
    asked = '[[apart]]\nlabel = "all"\na = "a"\nb = "b"\n'
    forward = asked + 'where = { phase = "forward" }\n'
    assert written(tmp_path, asked + forward + asked + 'without = { phase = "forward" }') == [
        ["all", "4", "-0.7%", "1", "1", "2", f"+20.0%: {cases[3].label}"],
        ["all", "3", "-2.0%", "1", "1", "2", f"-4.0%: {cases[2].label}"],
        ["all", "1", "+20.0%", "0", "0", "0", f"+20.0%: {cases[3].label}"],
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ('[[runs]]\nrun = "empty"', "has no results"),
        ('[[runs]]\nnote = "x"', "cannot be read: KeyError 'run'"),
        (
            '[[apart]]\nlabel = "x"\na = "a"\nb = "a"\nwhere = { phase = "request" }',
            "no such case has a result in both",
        ),
        ('[[apart]]\nlabel = "x"\na = "a"\nb = "a"\nwhere = { fase = "x" }', "no column 'fase'"),
        ('[[apart]]\na = "a"\nb = "a"', "cannot be read: KeyError 'label'"),
    ],
)
def test_what_cannot_be_told_is_named(tmp_path, asked, words):
    a_run(tmp_path / "a", timed(a_case(64), 10))
    a_run(tmp_path / "empty", without(a_case(64)))
    with pytest.raises(UserError, match=words):
        written(tmp_path, asked)


def test_caches_are_compared_with_states_by_the_models_own_sizes(tmp_path):
    """Mamba: 48 layers of 4,096 x (16 + 3) bfloat16 numbers; a cached token has 24 x 2 x 2,048 or 512."""
    assert written(tmp_path, 'states = ["mamba", "ttt-mlp"]') == [
        ["Mamba", "7.5", "39", "153"],
        ["TTT-MLP", "118.0", "601", "2,401"],
    ]
