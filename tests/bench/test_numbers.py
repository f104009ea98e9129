"""`bench.numbers` writes the committed tables from the committed runs; a table that selects no case is an error."""

import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from bench.errors import UserError
from bench.numbers import BEGINNING, KEY, Source, with_numbers
from harness.schema.run import Run
from tests.reports.small_runs import a_case, a_run, timed

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "reports/results"
DEFINITIONS = tomllib.loads((RESULTS / "tables.toml").read_text(encoding="utf-8"))
FOLDERS = ("bench", "reports", "tk_kernels")
EVERY = [ROOT / "README.md", *(each for name in FOLDERS for each in sorted(ROOT.glob(f"{name}/**/*.md")))]
FILES = [path.relative_to(ROOT).as_posix() for path in EVERY if BEGINNING in path.read_text(encoding="utf-8")]
TEXT = "before\n<!-- table t -->\nan older table\n<!-- end -->\nafter\n"
DEFINED = """
run = "h100"
head = "ms"
value = "latency_ms"
columns = [{ label = "2k", context = 2048 }, { label = "8k", context = 8192 }]
rows = [%s]
%s
"""


@cache
def source(run):
    return Source.of(Run.open(RESULTS / run))


def cases():
    names = ("suites", "system", "backend", "batch", "context", "latency_ms", "flags", KEY)
    return pd.DataFrame(
        [
            (("a",), "s", "x", 1, 2048, 0.12345, "", "k0"),
            (("a", "b"), "s", "x", 16, 2048, 12.6, "few samples", "k1"),
            (("a",), "s", "x", 16, 8192, 2345.6, "cache full, few samples", "k2"),
            (("b",), "s", "y", 1, 8192, 0.5, "", "k3"),
            (("a",), "s", "x", 64, 8192, None, "", "k4"),
        ],
        columns=names,
    )


def table(definition, source_of):
    text = with_numbers(TEXT, {"t": tomllib.loads(definition)}, source_of)
    return [line for line in text.splitlines() if line.startswith("| ")]


def rows_of(rows, more=""):
    return table(DEFINED % (rows, more), lambda run: Source(None, cases(), {}))[2:]


@pytest.mark.parametrize("file", FILES)
def test_committed_tables_match_the_committed_runs(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert with_numbers(text, DEFINITIONS, source) == text


def test_a_cell_is_the_case_of_its_row_and_column():
    definition = DEFINED % ('{ label = "B=1", batch = 1 }, { label = "16", batch = 16 }', "")
    text = with_numbers(TEXT, {"t": tomllib.loads(definition)}, lambda run: Source(None, cases(), {}))
    assert text == (
        "before\n<!-- table t -->\n"
        "| ms | 2k | 8k |\n| --- | --- | --- |\n| B=1 | 0.123 | 0.500 |\n| 16 | 12.6 * | 2,350 † * |\n"
        "\nSigns: † the KV cache held fewer sequences than requested; * fewer than 6 samples.\n<!-- end -->\nafter\n"
    )


@pytest.mark.parametrize(
    ("rows", "more", "last"),
    [
        ('{ label = "r", backend = "x|y" }', 'where = { suites = "b" }', "| r | 12.6 * | 0.500 |"),
        ('{ label = "r", batch = 1, scale = 100 }', "scale = 10", "| r | 12.3 | 50.0 |"),
        ('{ label = "last", given = [1, 1] }, { label = "r", given = [1234567, ""] }', "", "| r | 1,234,567 |  |"),
        (
            '{ label = "a", given = [3, ""] }, { label = "b", given = [2, 5] }, { label = "r", ratio = ["a", "b"] }',
            "",
            "| r | 1.50 |  |",
        ),
    ],
)
def test_a_row_selects_scales_gives_or_divides(rows, more, last):
    assert rows_of(rows, more)[-1] == last


def test_a_row_can_be_of_another_run():
    runs = {"h100": cases(), "again": cases().assign(latency_ms=7.0)}
    rows = '{ label = "r", batch = 16 }, { label = "again", batch = 16, run = "again" }'
    found = table(DEFINED % (rows, ""), lambda run: Source(None, runs[run], {}))
    assert found[2:] == ["| r | 12.6 * | 2,350 † * |", "| again | 7.00 * | 7.00 † * |"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('{ label = "r", batch = 2 }', "'r': no case"),
        ('{ label = "r", backend = "x", batch = 1 }', "'8k': no case"),
        ('{ label = "r", system = "s" }', "2 cases have system s, context 2048"),
        ('{ label = "r", btch = 1 }', "no column 'btch'"),
        ('{ label = "r", batch = 1, value = "speed" }', "no column 'speed'"),
        ('{ label = "r", given = [1, 2] }, { label = "q", ratio = ["r", "p"] }', "KeyError: 'p'"),
    ],
)
def test_a_mistake_in_a_definition_is_one_sentence(rows, words):
    with pytest.raises(UserError, match=rf"table t: .*{words}"):
        rows_of(rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TEXT.replace("<!-- end -->", ""), "does not end with <!-- end -->"),
        (TEXT.replace("table t", "table u"), "table u: unknown; there are t"),
    ],
)
def test_a_file_without_a_whole_table_is_named(text, words):
    with pytest.raises(UserError, match=words):
        with_numbers(text, {"t": {"runs": []}}, source)


def test_the_command_rewrites_files(tmp_path):
    a_run(tmp_path / "h100", timed(a_case(2048, batch=16), 12.6), timed(a_case(8192, batch=16), 2345.6))
    tables = DEFINED % ('{ label = "B=16", batch = 16 }', "")
    (tmp_path / "tables.toml").write_text(f"[t]{tables}[lost]{tables.replace('h100', 'none')}", encoding="utf-8")
    (tmp_path / "right.md").write_text(TEXT)
    (tmp_path / "lost.md").write_text(TEXT.replace("table t", "table lost"))
    for status, printed, error in ((2, "wrote", "none: no such folder"), (0, "unchanged", "")):
        command = [sys.executable, "-m", "bench.numbers", "tables.toml", "right.md", *(["lost.md"] if error else [])]
        done = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (status, f"{printed} right.md\n")
        assert error in done.stderr
    assert "| B=16 | 12.6 | 2,350 |" in (tmp_path / "right.md").read_text()
