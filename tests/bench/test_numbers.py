"""The tables of the Markdown files are those of the committed run, and a definition finds the cases that it names."""

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from command_line import assert_one_sentence

from bench.errors import UserError
from bench.numbers import BEGINNING, significant, with_numbers
from bench.run_tables import KEY, Source
from harness.schema.case import Case
from harness.schema.profile import Counters, Kernel, Profile
from harness.schema.run import Run

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "reports/results"
DEFINITIONS = tomllib.loads((RESULTS / "tables.toml").read_text(encoding="utf-8"))
FILES = [
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *sorted(ROOT.glob("tk_kernels/**/*.md")), *sorted(ROOT.glob("reports/**/*.md")))
    if BEGINNING in path.read_text(encoding="utf-8")
]

TEXT = """before
<!-- table t -->
an older table
<!-- end -->
after
"""
DEFINED = """
run = "%s"
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
    names = ("suites", "system", "backend", "batch", "context", "latency_ms", "marks", KEY)
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


ROW = '{ label = "B=16", batch = 16 }'


def table(definition, source_of=lambda run: Source(cases())):
    """The text with its table written as a definition in TOML says."""
    return with_numbers(TEXT, {"t": tomllib.loads(definition)}, source_of)


def written(rows, more="", profiles=None):
    asked = []
    source = Source(cases(), profiles or {})
    text = table(DEFINED % ("h100", rows, more), lambda run: asked.append(run) or source)
    assert asked == ["h100"]
    return text


def rows_of(text):
    return [line for line in text.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("file", FILES)
def test_committed_tables_are_those_of_the_committed_runs(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert with_numbers(text, DEFINITIONS, source) == text


def test_each_definition_has_one_table():
    tables = [name for file in FILES for name in re.findall(r"<!-- table ([\w-]+) -->", (ROOT / file).read_text())]
    assert sorted(tables) == sorted(DEFINITIONS)


def test_a_cell_is_the_case_of_its_row_and_column():
    text = written('{ label = "B=1", batch = 1 }, { label = "B=16", batch = 16 }')
    assert rows_of(text) == [
        "| ms | 2k | 8k |",
        "| --- | --- | --- |",
        "| B=1 | 0.123 | 0.500 |",
        "| B=16 | 12.6 * | 2,350 † * |",
    ]
    assert "an older table" not in text
    assert text.startswith("before\n")
    meaning = "\n\nSigns: † fewer sequences at once than requested; * fewer than 6 samples.\n<!-- end -->\nafter\n"
    assert text.endswith(meaning)


def test_a_row_says_more_than_the_table_and_a_column_more_than_a_row():
    definition = DEFINED.replace('label = "2k"', 'label = "2k", digits = 1')
    rows = '{ label = "B=1", batch = 1, digits = 2 }'
    text = table(definition % ("out", rows, "digits = 4"))
    assert rows_of(text)[2] == "| B=1 | 0.1 | 0.50 |"


def test_a_column_may_be_of_another_run():
    """As one GPU beside another."""
    faster = cases().assign(latency_ms=lambda table: table["latency_ms"] / 2)
    definition = DEFINED.replace("context = 8192", 'context = 8192, run = "elsewhere"')
    sources = {"out": Source(cases()), "elsewhere": Source(faster)}
    text = table(definition % ("out", '{ label = "B=16", batch = 16 }', ""), sources.__getitem__)
    assert rows_of(text)[2] == "| B=16 | 12.6 * | 1,170 † * |"


def test_suites_alternatives_lists_signs_and_the_best_of_several():
    said = 'where = { suites = "b" }'
    assert rows_of(written('{ label = "r", backend = "x|y" }', said))[2] == "| r | 12.6 * | 0.500 |"
    assert (
        rows_of(written('{ label = "r", backend = "x", batch = [1, 16] }'))[2]
        == "| r | 0.123 / 12.6 * | – / 2,350 † * |"
    )
    marked = 'scale = 10\ndigits = 2\nbest = "max"'
    assert rows_of(written('{ label = "r", backend = "x" }', marked))[2] == "| r | 130 * | 23,000 † * |"
    assert rows_of(written('{ label = "r", backend = "x", best = "min" }'))[2] == "| r | 0.123 | 2,350 † * |"


def test_numbers_from_elsewhere_and_ratios_of_two_rows_above():
    ours = '{ label = "ours", batch = 16 }, { label = "theirs", given = [25.2, 4691.2] }'
    rows = rows_of(written(f'{ours}, {{ label = "times", ratio = ["theirs", "ours"] }}'))
    assert rows[3:] == ["| theirs | 25.2 | 4,691.2 |", "| times | 2.00 | 2.00 |"]
    rows = rows_of(
        written(
            '{ label = "a", given = [3, ""] }, { label = "b", given = [2, 5] }, '
            '{ label = "c", ratio = ["a", "b"], digits = 2 }'
        )
    )
    assert rows[2:] == ["| a | 3 |  |", "| b | 2 | 5 |", "| c | 1.5 |  |"]
    both = '{ label = "both", backend = "x", batch = [1, 16] }, { label = "one", ratio = ["both", "both"] }'
    assert rows_of(written(both))[3] == "| one | 1.00 / 1.00 | – / 1.00 |"


def profiled(status="ok", reason="", batch=1):
    """Three kernels of 8, 1 and 1 us and a gap of 2 us; the first of them computes at 90% of the ceiling."""
    counters = Counters(launches=1, time_us=8.0, operations=720e6 * 8, use={"tensor": 91.0})
    kernels = (Kernel("nvjet_a", 1, 8.0, counters=counters), Kernel("_dual", 1, 1.0), Kernel("_rms_norm", 1, 1.0))
    case = Case("s", "x", "1.3b", "forward", batch, 2048)
    found = {"region_us": 12.0, "busy_us": 10.0, "kernels": kernels} if status == "ok" else {}
    return Profile(case=case, status=status, reason=reason, ceilings={"product_tflops": 800.0}, **found)


def test_a_cell_may_say_what_a_profile_found():
    asked = [
        '{ label = "ms", profile = "ms" }',
        '{ label = "TTT", profile = ["ttt", "edges"] }',
        '{ label = "gaps", profile = ["gaps"] }',
        '{ label = "edges, ms", profile = ["edges"], unit = "ms" }',
        '{ label = "longest", profile = "longest" }',
    ]
    rows = ", ".join(each.replace(" }", ", batch = 1 }") for each in asked)
    profiles = {"k0": profiled(), "k3": profiled("failed", "no kernel ran")}
    text = rows_of(written(rows, profiles=profiles))
    assert text[2] == "| ms | 0.0120 |  |"
    assert text[3:5] == ["| TTT | 17% |  |", "| gaps | 17% |  |"]
    busy = "90% of the peak GEMM rate: compute-bound, tensor cores busy 91% of the time"
    assert text[5] == "| edges, ms | 0.00100 |  |"
    assert text[6] == f"| longest | `nvjet_a`, 67%: {busy} |  |"


def test_a_row_or_column_asks_for_a_value_where_the_table_asks_for_profiles():
    plain = DEFINED.replace('value = "latency_ms"\n', "")
    rows = '{ label = "p", batch = 1 }, { label = "v", batch = 1, value = "latency_ms" }'
    column = plain.replace('label = "2k"', 'label = "2k", value = "batch"')

    def text(defined, rows):
        profiles = {"k0": profiled()}
        return rows_of(table(defined % ("out", rows, 'profile = "ms"'), lambda run: Source(cases(), profiles)))

    assert text(plain, rows)[2:] == ["| p | 0.0120 |  |", "| v | 0.123 | 0.500 |"]
    assert text(column, '{ label = "r", batch = 1 }')[2] == "| r | 1.00 |  |"
    with pytest.raises(UserError, match="'r': has both a value and a profile"):
        written('{ label = "r", value = "batch", profile = "ms" }')


def test_labels_are_texts_and_what_was_given_stays():
    rows = '{ label = 16, batch = 16 }, { label = "g", given = [1234567, 0.5] }'
    definition = DEFINED.replace('label = "2k"', "label = 2048") % ("out", rows, "")
    text = rows_of(table(definition))
    assert (text[0], text[3]) == ("| ms | 2048 | 8k |", "| g | 1,234,567 | 0.5 |")
    assert text[2].startswith("| 16 | ")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ('profile = "time"', "must be ms, longest, or a list of products, ttt"),
        ('profile = ["ttt", "sacn"]', "must be ms, longest, or a list of products, ttt"),
        ('profile = ["ttt"], unit = "s"', "unit = 's': must be share or ms"),
        ('profile = "ms", batch = 64', "row 'r': no case"),  # it was not profiled
        ('profile = "ms", system = "s"', "2 cases are system s, context 2048"),
    ],
)
def test_a_profile_that_is_not_there_is_named(asked, words):
    profiles = {"k0": profiled(), "k1": profiled(batch=16)}
    batch = "" if "batch" in asked or "system" in asked else ", batch = 1"
    with pytest.raises(UserError, match=words):
        written(f'{{ label = "r", {asked}{batch} }}', profiles=profiles)


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        ('{ label = "r", given = [1] }', "", "row 'r': 1 given numbers for 2 columns"),
        ('{ label = "r", given = ["a", 1] }', "", "cannot be read: ValueError"),
        ('{ label = "r", ratio = ["a", "b"] }', "", "cannot be read: KeyError 'a'"),
        ('{ label = "a", given = [0, 0] }, { label = "r", ratio = ["a", "a"] }', "", "cannot be read: ZeroDivision"),
        ('{ label = "r", batch = 2 }', "", "row 'r': no case"),
        ('{ label = "r", batch = 1 }', 'rowz = []', "rowz: unknown; did you mean rows"),
        ('{ label = "r", batch = 64 }', "", "row 'r': no case"),
        ('{ label = "r", system = "s" }', "", "2 cases are"),
        ('{ label = "r", btch = 1 }', "", "no column 'btch'"),
        ('{ label = "r", value = "speed" }', "", "no column 'speed'"),
        ('{ batch = 1 }', "", "cannot be read: KeyError 'label'"),
        ('{ label = "r", batch = 1 }', "marks = 3", "marks: unknown"),
        ('{ label = "r", batch = 1, scale = inf }', "", "cannot be read: OverflowError"),
    ],
)  # fmt: skip
def test_a_definition_that_finds_nothing_is_named(rows, more, words):
    with pytest.raises(UserError, match=words):
        written(rows, more)


def test_a_column_that_names_no_case_is_named():
    with pytest.raises(UserError, match="column '8k': no case of the run"):
        table(DEFINED.replace("8192", "9000") % ("out", '{ label = "r", batch = 1 }', ""))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no table", "has no table; one begins with <!-- table NAME -->"),
        (TEXT.replace("<!-- end -->", ""), "1 table begin with .*, and <!-- end --> ends 0"),
        (TEXT.replace("table t", "table u"), "table u: unknown; there are t"),
    ],
)
def test_a_file_whose_table_cannot_be_found_is_named(text, words):
    with pytest.raises(UserError, match=words):
        with_numbers(text, {"t": {"runs": []}}, source)


@pytest.mark.parametrize(
    ("number", "shown"), [(0.092029, "0.0920"), (9.996, "10.0"), (99.96, "100"), (2344.9, "2,340"), (0, "0")]
)
def test_three_significant_digits(number, shown):
    assert significant(number, 3) == shown


def test_the_command_rewrites_files_and_names_those_that_it_cannot(tmp_path):
    right, wrong, tables = tmp_path / "right.md", tmp_path / "wrong.md", tmp_path / "tables.toml"
    asked = 'where = { suites = "kernel-forward", system = "ttt-mlp", backend = "thunderkittens", l2 = "cold" }'
    run = os.path.relpath(RESULTS / "h200", tmp_path)
    definitions = {"t": (run, asked), "lost": ("none", "")}
    tables.write_text(
        "".join(f"[{name}]{DEFINED % (run, ROW, more)}" for name, (run, more) in definitions.items()), encoding="utf-8"
    )
    right.write_text(TEXT)
    wrong.write_text("no table")
    (tmp_path / "lost.md").write_text(TEXT.replace("table t", "table lost"))

    def numbers(*files, tables="tables.toml"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "bench.numbers", tables, *files]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert_one_sentence(numbers("right.md", "wrong.md"), "wrong.md: has no table", "; no file is changed")
    assert_one_sentence(numbers("none.md"), "none.md: cannot be read: No such")
    assert_one_sentence(numbers("right.md", tables="right.md"), "right.md: cannot be read: ")
    assert_one_sentence(numbers("right.md", "lost.md"), "lost.md: table lost: ", "none: no such folder")
    assert right.read_text() == TEXT
    done = numbers("right.md")
    assert (done.returncode, done.stdout) == (0, "wrote right.md\n")
    assert "| B=16 | 1.02 | 3.89 |" in right.read_text()
    written = right.stat().st_mtime_ns
    done = numbers("right.md")
    assert (done.returncode, done.stdout) == (0, "unchanged right.md\n")
    assert right.stat().st_mtime_ns == written
