"""Tables as CSV, JSON, Markdown and text have the right rows, columns, units and escapes."""

import csv
import io
import json
import re
from types import SimpleNamespace

import pandas as pd
import pytest
import synthetic_records as synthetic

from harness.schema.case import Case
from harness.schema.record import Record, RecordError
from reports.publish import write_table
from reports.stats import COLUMNS
from reports.tables import csv_text, write_frame

PAPER = synthetic.paper()
KERNELS = synthetic.made(synthetic.kernels())


def written(made, fmt, columns=(), out=None):
    out = out or io.StringIO()
    write_frame(made.table, fmt, out, made.catalogue, columns)
    return out.getvalue()


def test_csv_has_one_row_for_each_case_unrounded():
    rows = list(csv.DictReader(io.StringIO(written(PAPER, "csv"))))
    assert len(rows) == len(PAPER.records)
    assert list(rows[0])[: len(COLUMNS)] == list(COLUMNS)
    assert [float(row["latency_ms"]) for row in rows if row["latency_ms"]] == list(PAPER.table["latency_ms"].dropna())
    assert rows[1]["suites"] == "fig15-generate"
    assert "fig15-forward, fig20-throughput" in {row["suites"] for row in rows}


def test_each_row_of_csv_is_a_line():
    cells = ["a\rb", "a\nb", "\ta", 'a"b', "a,b", -1.5]
    assert csv_text(pd.DataFrame({"x": cells})) == 'x\na b\na b\n a\n"a""b"\n"a,b"\n-1.5\n'


def test_csv_has_no_formula_and_its_numbers_keep_their_sign():
    cells = ["=1", "+1", "-1", "@a", "\t=1", ("=1", "b"), "a=1", -1, -1.5, pd.NA, ""]
    assert csv_text(pd.DataFrame({"=x": cells})).split("\n") == [
        *("'=x", "'=1", "'+1", "'-1", "'@a", "' =1", '"\'=1, b"', "a=1", "-1", "-1.5", '""', '""', ""),
    ]


def test_json_has_null_for_missing_values():
    rows = json.loads(written(PAPER, "json"))
    lost = next(row for row in rows if row["status"] == "oom")
    assert lost["latency_ms"] is None
    assert lost["reason"]
    assert {"batch": 16, "context": 1024, "suites": ["fig15-forward"]}.items() <= rows[0].items()


def test_text_prints_constant_columns_once():
    text = written(KERNELS, "text")
    assert text.startswith("in every row: size 1.3b, dtype bfloat16, timing graph, device NVIDIA H100 80GB HBM3, ")
    assert text.count("NVIDIA") == 1
    assert text.count("\n") == len(KERNELS.records) + 3
    mixed = KERNELS.table.assign(device=KERNELS.table["backend"])
    text = written(SimpleNamespace(table=mixed, catalogue=KERNELS.catalogue), "text")
    assert "device" in text.splitlines()[2].split()  # no GPU's times look like another's


@pytest.mark.parametrize("made", [PAPER, KERNELS, synthetic.made(synthetic.fidelity())])
def test_rows_of_different_cases_differ(made):
    lines = [line for line in written(made, "markdown").splitlines() if line.startswith("|")]
    head = lines[0].split(" | ")
    assert {"latency_ms", "backend"} <= set(head)
    settings = [line.split(" | ")[: head.index("latency_ms")] for line in lines[2:]]
    assert len(set(map(tuple, settings))) == len(settings) == len(made.table)


def test_text_has_reasons_if_no_case_has_a_result():
    cases = [Case("a", "torch", "tiny", "forward", batch, 64) for batch in (1, 2, 3)]
    incorrect = Record(cases[0], "incorrect", "error is 2, limit 1")
    broken = Record(cases[1], "failed", "ImportError: x")
    text = written(synthetic.made([("quick", incorrect), ("quick", broken)]), "text")
    assert [re.split("  +", line)[-1] for line in text.splitlines()[-2:]] == ["error is 2, limit 1", "ImportError: x"]
    known = Record(cases[2], "ok", samples_ms=[1.0], throttled=[False])
    assert "ImportError" not in written(
        synthetic.made([("quick", incorrect), ("quick", broken), ("quick", known)]), "text"
    )


def test_a_narrow_terminal_folds_words_and_never_a_number(monkeypatch):
    monkeypatch.setenv("COLUMNS", "64")
    case = Case("a-system-with-a-long-name", "a-backend-with-a-long-name", "1.3b", "forward", 131072, 1048576)
    made = synthetic.of_suite("quick", synthetic.ok(case, 123456.0))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    text = written(made, "text", ("system", "backend", "batch", "context", "peak_memory_gb"), terminal)
    assert max(map(len, text.splitlines())) <= 64
    assert {"131072", "1048576"} <= set(text.split())


def test_requested_columns_and_their_units():
    text = written(KERNELS, "text", ("backend", "energy_j_per_token", "state_bytes"))
    assert text.splitlines()[0].split() == ["backend", "energy_j_per_token", "[mJ]", "state_bytes", "[MB]"]
    assert text.splitlines()[1].split() == ["thunderkittens", "12.5", "33.55"]
    assert written(KERNELS, "csv", ("energy_j_per_token",)).splitlines()[1] == "0.0125"
    assert written(KERNELS, "text", ("all",)).splitlines()[0].split()[0] == "suites"
    with pytest.raises(RecordError, match="--columns wings: no such column; there are suites, system"):
        written(KERNELS, "text", ("wings",))


def test_markdown_escapes_cells():
    made = synthetic.of_suite("quick", synthetic.ok(Case("a|<b>", "torch", "tiny", "forward", 2, 64), 1.0))
    head, rule, row = written(made, "markdown").split("\n\n")[-1].splitlines()
    assert head.startswith("| system | backend |")
    assert set(rule) <= set("|-: ")
    assert row.startswith("| a\\|\\<b\\> | torch |")


def test_csv_has_bottleneck_columns_and_text_omits_some():
    rows = list(csv.DictReader(io.StringIO(written(KERNELS, "csv"))))
    assert {
        "tflops",
        "gbs",
        "lower_bound_ms",
        "bound",
        "lower_bound_share",
        "copy_share",
        "registers",
        "spilled_bytes",
        "shared_bytes",
        "energy_j_per_token",
        "state_bytes",
    } <= set(rows[0])
    assert float(rows[0]["lower_bound_share"]) == pytest.approx(1 / 1.5, rel=0.02)
    assert (rows[0]["bound"], rows[0]["registers"], rows[2]["registers"]) == ("memory", "168", "")
    steps = synthetic.of_suite("kernel-generate", *KERNELS.of("kernel-generate"))
    head = written(steps, "text").split("\n\n")[-1].splitlines()[0]
    assert {"state_dtype", "us_per_token"} <= set(head.split())
    assert "registers" not in head


def test_text_of_hostile_records_has_their_markup_and_no_escape_sequence():
    text = written(synthetic.hostile(), "text", ("all",))
    assert "\x1b" not in text
    assert '<img src=x onerror="window.injected = 2">' in text


def test_write_table_reads_a_run(tmp_path, capsys):
    run = KERNELS.run(tmp_path / "run")
    write_table(run, "csv")
    assert capsys.readouterr().out == written(KERNELS, "csv")
    write_table(run, "csv", columns=("system",))
    assert set(capsys.readouterr().out.split()) == {"system", "ttt-linear", "ttt-mlp"}
    with pytest.raises(RecordError, match="nothing"):
        write_table(tmp_path / "nothing", "csv")
