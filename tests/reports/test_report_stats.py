"""Do the statistics follow from the samples?"""

import math

import pytest
import synthetic_records as synthetic

from harness.case import Case
from harness.interval import median_interval
from harness.record import Record
from reports.roofline import EXPLANATION_COLUMNS
from reports.stats import COLUMNS, SAMPLE_COLUMNS, frame, option_columns

FORWARD = Case("fig15-forward", "ttt-linear", "torch", "1.3b", "forward", 16, 2048, options=(("mini_batch", 16),))
CSV_COLUMNS = [
    *("suite", "system", "backend", "size", "phase", "batch", "context", "status", "reason"),
    *("latency_ms", "latency_ms_low", "latency_ms_high", "us_per_token", "tokens_per_s", "peak_memory_gb"),
    *("dtype", "state_dtype", "timing", "l2", "device", "commit"),
]


def test_columns_are_those_of_the_csv_then_options_then_samples():
    table = frame([synthetic.ok(FORWARD, 3.0), synthetic.lost(Case("s", "x", "y", "z", "generate", 1, 0), "oom", "no")])
    assert list(COLUMNS) == CSV_COLUMNS
    assert list(table.columns) == [*CSV_COLUMNS, "mini_batch", *SAMPLE_COLUMNS, "tflops", "gbs"]
    assert option_columns(table) == ["mini_batch"]
    filled = frame([*synthetic.kernels(), *synthetic.fidelity()])
    assert list(filled.columns) == [*CSV_COLUMNS, "scope", "compare", *SAMPLE_COLUMNS, *EXPLANATION_COLUMNS]


def test_what_a_reader_must_know_of_the_settings_is_a_column_where_a_record_says_it():
    said = {"launch": "replayed", "warning": "may be wrong", "weights_dtype": "bfloat16"}
    table = frame([synthetic.ok(FORWARD, 3.0), synthetic.ok(FORWARD, 3.0, settings=said)])
    assert table["notes"].tolist() == ["", "replayed; may be wrong"]
    assert "notes" not in frame([synthetic.ok(FORWARD, 3.0)])


@pytest.mark.parametrize(
    ("metrics", "settings", "note"),
    [
        ({"sequences_at_once": 172}, {}, "172 of 256 sequences at once: no more fit"),
        ({"sequences_at_once": 256}, {"prompt_tokens": "2048"}, ""),
        ({}, {"prompt_tokens": "128"}, "read a prompt of 128, not 2048"),
        ({}, {"prompt_tokens": "0"}, ""),
    ],
)
def test_what_was_run_in_place_of_the_case_as_asked_is_a_note(metrics, settings, note):
    asked = Case("s", "transformer", "vllm", "1.3b", "generate", 256, 2048)
    table = frame([synthetic.ok(asked, 3.0, metrics=metrics, settings={"launch": "x", **settings})])
    assert table["notes"].tolist() == ["; ".join(filter(None, ("x", note)))]


def test_latency_is_the_median_with_its_interval():
    samples = [float(value) for value in (9, 1, 2, 3, 4, 5, 6, 7, 8, 100)]
    record = Record(FORWARD, "ok", samples_ms=samples, throttled=[True] + [False] * 9, tokens=1000)
    row = frame([record]).iloc[0]
    assert (row["latency_ms"], row["latency_ms_low"], row["latency_ms_high"]) == median_interval(samples)
    assert row["latency_ms"] == 5.5
    assert row["latency_ms_low"] < 5.5 < row["latency_ms_high"] < 100
    assert (row["samples"], row["throttled"]) == (10, 1)


def test_rates_and_memory_follow_from_latency_tokens_and_bytes():
    record = Record(FORWARD, "ok", samples_ms=[4.0], throttled=[False], tokens=32_768, peak_memory_bytes=3_500_000_000)
    row = frame([record]).iloc[0]
    assert row["us_per_token"] == pytest.approx(4000 / 32_768)
    assert row["tokens_per_s"] == pytest.approx(32_768 / 0.004)
    assert row["peak_memory_gb"] == pytest.approx(3.5)


def test_a_lost_case_keeps_its_row_reason_and_memory_without_a_latency():
    row = frame([Record(FORWARD, "oom", "needs 90 GB", peak_memory_bytes=80_000_000_000)]).iloc[0]
    assert (row["status"], row["reason"], row["peak_memory_gb"]) == ("oom", "needs 90 GB", 80.0)
    assert all(math.isnan(row[name]) for name in ("latency_ms", "latency_ms_low", "us_per_token", "tokens_per_s"))


@pytest.mark.parametrize("fields", [{"tokens": 0}, {"samples_ms": [0.0], "throttled": [False], "tokens": 5}])
def test_no_rate_without_tokens_or_time(fields):
    record = Record(FORWARD, "ok", **({"samples_ms": [2.0], "throttled": [False]} | fields))
    assert math.isnan(frame([record]).iloc[0]["tokens_per_s"])


def test_an_option_cannot_overwrite_a_column():
    options = (("batch", "mine"), ("samples", "yours"), ("floor_ms", "his"))
    row = frame([synthetic.ok(Case("s", "x", "y", "z", "generate", 7, 0, options=options), 1.0)]).iloc[0]
    assert row["option_floor_ms"] == "his"
    assert (row["batch"], row["option_batch"], row["samples"], row["option_samples"]) == (7, "mine", 30, "yours")


def test_whole_number_options_stay_whole_where_some_cases_lack_them():
    other = Case("s", "x", "y", "z", "generate", 1, 0)
    table = frame([synthetic.ok(FORWARD, 3.0), synthetic.ok(other, 3.0)])
    assert str(table["mini_batch"].iloc[0]) == "16"


def test_no_records_give_an_empty_table():
    assert list(frame([]).columns) == [*CSV_COLUMNS, *SAMPLE_COLUMNS]
