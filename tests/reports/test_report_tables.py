"""Do the tables hold the rows, in a form that neither a spreadsheet nor a terminal runs?"""

import csv
import io
import json

import pytest
import synthetic_records as synthetic

from harness.record import RecordError, RecordFile
from reports import write_table
from reports.publish import of_systems
from reports.stats import COLUMNS, frame
from reports.tables import write_frame

RECORDS = synthetic.paper()


def written(records, fmt):
    out = io.StringIO()
    write_frame(frame(records), fmt, out)
    return out.getvalue()


def test_records_of_some_systems_in_their_order():
    chosen = of_systems(RECORDS, ["mamba", "ttt-linear/torch"])
    assert chosen == [record for record in RECORDS if record.case.system == "mamba"
                      or (record.case.system, record.case.backend) == ("ttt-linear", "torch")]
    assert {record.case.system for record in chosen} == {"mamba", "ttt-linear"}
    assert of_systems(RECORDS, []) == RECORDS
    with pytest.raises(RecordError, match="mamba/torchh: no records"):
        of_systems(RECORDS, ["mamba/torchh"])


def test_csv_has_one_row_per_record_unrounded():
    rows = list(csv.DictReader(io.StringIO(written(RECORDS, "csv"))))
    assert len(rows) == len(RECORDS)
    assert list(rows[0])[: len(COLUMNS)] == list(COLUMNS)
    assert [float(row["latency_ms"]) for row in rows if row["latency_ms"]] == list(
        frame(RECORDS)["latency_ms"].dropna()
    )
    assert rows[0]["mini_batch"] == "16"


def test_csv_of_hostile_records_holds_no_formula():
    rows = list(csv.reader(io.StringIO(written(synthetic.hostile(), "csv"))))
    assert any(cell.startswith("'=HYPERLINK") for row in rows for cell in row)
    assert any(cell.startswith("'=cmd") for cell in rows[0])
    assert not [cell for row in rows for cell in row if cell[:1] in ("=", "+", "-", "@", "\t", "\r")]


def test_json_says_null_for_what_is_not_known():
    rows = json.loads(written(RECORDS, "json"))
    lost = next(row for row in rows if row["status"] == "oom")
    assert lost["latency_ms"] is None
    assert lost["reason"]
    assert {"batch": 16, "context": 1024, "mini_batch": 16}.items() <= rows[0].items()


def test_text_says_once_what_all_rows_share():
    text = written(RECORDS, "text")
    assert text.startswith("in every row: dtype bfloat16")
    assert text.count("dtype bfloat16") == 1
    assert text.count("\n") == len(RECORDS) + 2


def test_csv_appends_what_explains_a_latency_and_text_shows_its_rates():
    rows = list(csv.DictReader(io.StringIO(written(synthetic.kernels(), "csv"))))
    assert {"tflops", "gbs", "floor_ms", "bound", "floor_share", "copy_share", "registers", "spilled_bytes",
            "shared_bytes"} <= set(rows[0])
    assert float(rows[0]["floor_share"]) == pytest.approx(1 / 1.5, rel=0.02)
    assert (rows[0]["bound"], rows[0]["registers"], rows[2]["registers"]) == ("memory", "168", "")
    head = written(synthetic.kernels(), "text").splitlines()[1]
    assert "floor_share" in head
    assert "registers" not in head


def test_text_of_hostile_records_holds_no_escape_sequence_and_all_its_markup():
    text = written(synthetic.hostile(), "text")
    assert "\x1b" not in text
    assert '<img src=x onerror="window.injected = 2">' in text


def test_unknown_format_names_the_formats():
    with pytest.raises(ValueError, match="'xml': must be one of csv, json, text"):
        written(RECORDS, "xml")


def test_write_table_reads_record_files(tmp_path, capsys):
    with RecordFile(tmp_path / "a.jsonl") as file:
        file.append(RECORDS[0])
    write_table([tmp_path], "csv")
    assert capsys.readouterr().out == written(RECORDS[:1], "csv")
    with pytest.raises(RecordError, match="no such file"):
        write_table([tmp_path / "b.jsonl"], "csv")
