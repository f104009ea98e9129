"""`bench.numbers` writes the committed tables from the committed runs and names a definition that selects no case."""

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from bench.errors import UserError
from bench.numbers import BEGINNING, KEY, Source, with_numbers
from harness.schema.case import Case
from harness.schema.profile import Counters, Kernel, Profile
from harness.schema.run import Run
from tests.reports.small_runs import a_case, a_run, on_gpu, timed, without

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


def table(definition, source_of):
    text = with_numbers(TEXT, {"t": tomllib.loads(definition)}, source_of)
    return [line for line in text.splitlines() if line.startswith("| ")]


def rows_of(rows, more="", profiles=None):
    return table(DEFINED % (rows, more), lambda run: Source(None, cases(), profiles or {}))[2:]


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
        "\nSigns: † fewer sequences at once than requested; * fewer than 6 samples.\n<!-- end -->\nafter\n"
    )


@pytest.mark.parametrize(
    ("rows", "more", "last"),
    [
        ('{ label = "r", backend = "x|y" }', 'where = { suites = "b" }', "| r | 12.6 * | 0.500 |"),
        ('{ label = "r", batch = 1, scale = 100 }', "scale = 10", "| r | 12.3 | 50.0 |"),
        ('{ label = "r", batch = 1, value = "batch" }', "", "| r | 1.00 | 1.00 |"),
        ('{ label = "last", given = [1, 1] }, { label = "r", given = [1234567, ""] }', "", "| r | 1,234,567 |  |"),
        (
            '{ label = "ours", batch = 16 }, { label = "a", given = [25.2, 4691.2] }, '
            '{ label = "r", ratio = ["a", "ours"] }',
            "",
            "| r | 2.00 | 2.00 |",
        ),
        (
            '{ label = "a", given = [3, ""] }, { label = "b", given = [2, 5] }, { label = "r", ratio = ["a", "b"] }',
            "",
            "| r | 1.50 |  |",
        ),
        (
            '{ label = "r", batch = 1 }, { label = "z", batch = 1, scale = 2 }',
            "scale = 3",
            "| z | 0.247 | 1.00 |",
        ),
    ],
)
def test_a_row_selects_scales_gives_or_divides(rows, more, last):
    assert rows_of(rows, more)[-1] == last


def profiled(status="ok", batch=1):
    """Return a profile of kernels of 8, 1 and 1 us and 2 us idle; the first reaches 90% of the measured peak."""
    counters = Counters(launches=1, time_us=8.0, operations=720e6 * 8, use={"tensor": 91.0})
    kernels = (Kernel("nvjet_a", 1, 8.0, counters=counters), Kernel("_dual", 1, 1.0), Kernel("_rms_norm", 1, 1.0))
    case = Case("s", "x", "1.3b", "forward", batch, 2048)
    found = {"region_us": 12.0, "busy_us": 10.0, "kernels": kernels} if status == "ok" else {"reason": "no kernel ran"}
    return Profile(case=case, status=status, ceilings={"product_tflops": 800.0}, **found)


@pytest.mark.parametrize(
    ("asked", "cell"),
    [
        ('"ms"', "0.0120"),
        ('["ttt", "edges"]', "17%"),
        ('["gaps"]', "17%"),
        ('["edges"], unit = "ms"', "0.00100"),
        ('"longest"', r"`nvjet_a`, 67%: 90% of .* 91% of the time"),
    ],
)
def test_a_cell_reads_a_profile(asked, cell):
    profiles = {"k0": profiled(), "k3": profiled("failed")}
    rows = f'{{ label = "r", batch = 1, profile = {asked} }}, {{ label = "last", given = [1, 1] }}'
    assert re.fullmatch(rf"\| r \| {cell} \|  \|", rows_of(rows, profiles=profiles)[0])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ('{ label = "r", batch = 2 }', "'r': no case"),
        ('{ label = "r", backend = "x", batch = 1 }', "'8k': no case"),
        ('{ label = "r", system = "s" }', "2 cases have system s, context 2048"),
        ('{ label = "r", btch = 1 }', "no column 'btch'"),
        ('{ label = "r", batch = 1, value = "speed" }', "no column 'speed'"),
        ('{ label = "r", batch = 1, profile = ["ttt", "sacn"] }', "must be ms, longest, or a list of"),
        ('{ label = "r", batch = 64, profile = "ms" }', "'r': no case"),
    ],
)
def test_a_definition_that_selects_no_case_is_named(rows, words):
    with pytest.raises(UserError, match=rf"table t: .*{words}"):
        rows_of(rows, profiles={"k0": profiled(), "k1": profiled(batch=16)})


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


def of_runs(folder, definition):
    lines = table(definition, cache(lambda name: Source.of(Run.open(folder / name))))[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_table_of_runs(tmp_path):
    few = timed(a_case(128), 20, samples=3, at="2026-11-21T05:10:00+00:00")
    a_run(tmp_path / "one", timed(a_case(64), 10), few, without(a_case(256)))
    later = timed(a_case(128), 20, on_gpu(unit="87654321", dirty=True), at="2026-11-22T05:10:00+00:00")
    a_run(tmp_path / "two", timed(a_case(64), 10), later)
    definition = 'runs = [{ run = "one", note = "figure 15" }, { run = "two", note = "" }]'
    assert of_runs(tmp_path, definition) == [
        ["`one`", "H100 (1 GPU)", "2026-11-21 04:50 to 05:10", "aaaaaaaa", "2 of 3; 1 few samples", "figure 15"],
        ["`two`", "H100 (2 GPUs)", "2026-11-21 04:50 to 2026-11-22 05:10", "2 commits", "2 of 2", ""],
    ]


def test_a_table_of_pairs_of_runs(tmp_path):
    cases = [a_case(64), a_case(128), a_case(256), a_case(512, phase="generate")]
    a_run(tmp_path / "a", *(timed(case, 10) for case in cases))
    a_run(tmp_path / "b", *(timed(case, ms) for case, ms in zip(cases, (10.05, 9.802, 9.6, 12), strict=True)))
    assert of_runs(tmp_path, 'apart = [{ label = "x", a = "a", b = "b" }]') == [
        ["x", "4", "-0.7%", "1", "1", "2", f"+20.0%: {cases[3].label.replace('/', ' · ')}"]
    ]


def test_states_are_compared_with_caches_by_the_models_own_sizes(tmp_path):
    """Mamba: 48 layers of 4,096 x (16 + 3) bfloat16 numbers; a cached token has 24 x 2 x 2,048 or 512."""
    assert of_runs(tmp_path, 'states = ["mamba", "ttt-mlp"]') == [
        ["Mamba", "7.5", "39", "153"],
        ["TTT-MLP", "118.0", "601", "2,401"],
    ]


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
