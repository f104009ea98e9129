"""The statistics, notes and flags in a table of results match the records."""

import math
from dataclasses import replace
from statistics import median

import pytest
import synthetic_records as synthetic

from bench.catalogue import CATALOGUE
from harness.measure.interval import median_interval
from harness.quality import flagged, pooled_interval
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.record import Record
from reports.page.findings import flag_counts
from reports.roofline import RATE_COLUMNS
from reports.stats import COLUMNS, COMPUTED_COLUMNS, FLAGS, SAMPLE_COLUMNS, flags_in, frame

FORWARD = Case("ttt-linear", "torch", "1.3b", "forward", 16, 2048, options=(("mini_batch", 32),))
OTHER = Case("x", "y", "z", "generate", 1, 0)


def table_of(*records):
    return synthetic.of_suite("fig15-forward", *records).table


def notes_of(*records):
    return frame(records, Catalogue()).get("notes", [""])[0]


def test_recorded_metrics_are_columns_with_and_without_a_catalogue_entry():
    metrics = {metric.name: 1.0 for metric in CATALOGUE.metrics} | {"wings": 2.0, "parameters": 1e9}
    table = table_of(synthetic.ok(FORWARD, 3.0, metrics=synthetic.work(3e9, 6e10) | metrics))
    after = list(table.columns)[list(table.columns).index(SAMPLE_COLUMNS[-1]) + 1 :]
    computed = ["model_size", "flops_per_token", "flops_share", "tokens_per_j"]  # a forward has no interactivity
    others = (*COLUMNS, *RATE_COLUMNS, *COMPUTED_COLUMNS)
    recorded = [metric.name for metric in CATALOGUE.metrics if metric.name not in others]
    assert after == [*RATE_COLUMNS, *computed, *recorded, "wings"]
    assert {"energy_j_per_token", "state_bytes"} <= set(after)
    assert table["wings"][0] == 2


@pytest.mark.parametrize(
    ("changes", "metrics", "settings", "note"),
    [
        ({"phase": "generate"}, {"sequences_at_once": 172}, {}, "172 of 256 sequences ran concurrently: no more fit"),
        ({"phase": "generate"}, {"sequences_at_once": 256}, {"prompt_tokens": "2048"}, ""),
        ({}, {"sequences_at_once": 172}, {}, ""),
        ({"phase": "request"}, {}, {"prompt": "replayed from a graph"}, "the prompt is replayed from a CUDA graph"),
        ({"phase": "generate"}, {}, {"prompt_tokens": "128"}, "the prompt had 128 tokens, not 2048"),
        ({"phase": "generate"}, {}, {"prompt_tokens": "0"}, ""),
        ({"timing": "graph"}, {}, {}, "the prompt is replayed from a CUDA graph"),
        ({"timing": "graph", "options": {"scope": "layer"}}, {}, {}, ""),
        ({"timing": "graph", "phase": "generate"}, {}, {}, ""),
        ({"timing": "engine"}, {}, {}, "timed by the engine itself"),
        ({}, {}, {"warning": "may be wrong", "weights_dtype": "bfloat16"}, "may be wrong"),
    ],
)
def test_differences_in_measurement_are_notes(changes, metrics, settings, note):
    fields = {"phase": "forward", **changes}
    case = Case("transformer", "vllm", "1.3b", batch=256, context=2048, **fields)
    assert notes_of(synthetic.ok(case, 3.0, metrics=metrics, settings=settings)) == note


@pytest.mark.parametrize(
    ("fields", "note", "flag"),
    [
        ({"count": 5}, "only 5 samples: the bar is their range, not a 95% interval", "few samples"),
        ({"count": 6}, "", ""),
        ({"spread": 0.1}, "", ""),
        ({"spread": 1.0}, "unsteady: samples from 1.852 to 9.47 ms", "unsteady"),
        ({"count": 5, "spread": 1.0}, "only 5 samples: the bar is their range, not a 95% interval", "few samples"),
        ({"check": None}, "not compared with a reference", ""),
        ({"check": {"passed": True, "checks": [], "unchecked": "the outputs beyond 8k"}}, "the outputs beyond 8k", ""),
        ({"throttled": [True, True] + [False] * 28}, "2 of 30 samples throttled", ""),
        (
            {"environment": {"cpu": {"others_share": 0.43, "idle_share": 0.01}}},
            "contended: other programs used 43% of the CPU",
            "contended",
        ),
        ({"environment": {"cpu": {"others_share": 0.43, "idle_share": 0.4}}}, "", ""),
        (
            {"environment": {"gpu": {"after": {"throttle_reasons": ["sw_thermal_slowdown"], "temperature_c": 79}}}},
            "thermally throttled, at 79 °C",
            "thermally throttled",
        ),
        ({"environment": {"gpu": {"after": {"throttle_reasons": ["sw_power_cap"], "temperature_c": 79}}}}, "", ""),
        (
            {"environment": {"gpu": {"after": {"throttle_reasons": ["sw_power_cap", "hw_thermal_slowdown"]}}}},
            "thermally throttled",
            "thermally throttled",
        ),
        (
            {"environment": {"gpu": {"before": {"throttle_reasons": ["sw_thermal_slowdown"]}, "after": None}}},
            "",
            "",
        ),
    ],
)
def test_quality_problems_are_notes_and_flags(fields, note, flag):
    row = frame([synthetic.ok(FORWARD, 3.0, **fields)], Catalogue()).iloc[0]
    assert (row.get("notes", ""), row.get("flags", "")) == (note, flag)


def test_a_case_that_was_measured_again_lists_earlier_results():
    record = synthetic.ok(FORWARD, 3.0)
    record.earlier = [
        synthetic.lost(FORWARD, "skipped", "no GPU"),
        synthetic.lost(FORWARD, "timeout", "no answer"),
        synthetic.ok(FORWARD, 4.0, spread=0.0),
    ]
    assert notes_of(record) == "measured again; earlier: timeout, 4 ms"
    record.earlier = record.earlier[:1]
    assert notes_of(record) == ""


def test_the_page_counts_the_cases_that_retry_repeats():
    loaded = {"cpu": {"others_share": 0.43, "idle_share": 0.01}}
    hot = {"gpu": {"after": {"throttle_reasons": ["sw_thermal_slowdown"], "temperature_c": 79}}}
    capped = {"gpu": {"after": {"throttle_reasons": ["sw_power_cap"], "temperature_c": 79}}}
    wide = {"time_to_first_token_ms": 200.0, "time_to_first_token_ms_low": 150.0, "time_to_first_token_ms_high": 221.0}
    cases = [replace(FORWARD, batch=batch) for batch in range(1, 9)]
    records = [
        *map(lambda case, each: synthetic.ok(case, 3.0, environment=each), cases, (capped, loaded, hot)),
        replace(synthetic.ok(cases[3], 3.0, count=9), samples_ms=[3.0, 4.0, 2.0] * 3),
        synthetic.ok(cases[4], 3.0, metrics=wide),
        synthetic.ok(cases[5], 3.0, count=3),
        synthetic.ok(cases[6], 3.0, metrics={"sequences_at_once": 1}),
        synthetic.lost(cases[7], "failed", "no"),
    ]
    assert [bool(flag_counts(frame([record], Catalogue()))) for record in records] == [False, *[True] * 5, False, False]
    assert flagged(records) == {case.key for case in cases[1:6]}
    assert flagged(records, {case.key for case in cases}) == {case.key for case in cases[1:5]}


def test_a_full_cache_is_a_flag_even_of_few_samples():
    record = synthetic.ok(replace(OTHER, batch=4), 1.0, count=1, metrics={"sequences_at_once": 3})
    assert frame([record], Catalogue())["flags"].tolist() == ["cache full, few samples"]


def test_latency_is_the_median_with_its_interval():
    samples = [float(value) for value in (9, 1, 6, 3, 8, 2, 5, 100, 4, 7)]
    record = Record(FORWARD, "ok", samples_ms=samples, throttled=[True] + [False] * 9, tokens=1000)
    row = table_of(record).iloc[0]
    assert (row["latency_ms"], row["latency_ms_low"], row["latency_ms_high"]) == median_interval(samples)
    assert row["latency_ms"] == row["us_per_token"] == 5.5
    assert row["latency_ms_low"] < 5.5 < row["latency_ms_high"] < 100
    assert (row["samples"], row["throttled"], row["processes"]) == (10, 1, 1)
    assert math.isnan(row["process_spread"])


def test_lower_bounds_use_the_highest_peaks_of_the_run():
    def record(case, tflops, device):
        metrics = {"flops": 1e12, "bytes": 1e6, "product_tflops": tflops, "copy_gbs": 2000.0}
        return replace(synthetic.ok(case, 10.0, metrics=metrics), environment={"device": device})

    cases = [replace(FORWARD, context=context) for context in (2048, 4096, 8192)]
    rates, devices = (500.0, 800.0, 400.0), ("a", "a", "b")
    table = frame([record(*each) for each in zip(cases, rates, devices, strict=True)], Catalogue())
    assert table["lower_bound_ms"].tolist() == pytest.approx([1.25, 1.25, 2.5])
    assert table["lower_bound_share"].tolist() == pytest.approx([0.125, 0.125, 0.25], rel=0.02)


def test_repeats_are_one_row_whose_latency_is_the_median_of_the_processes():
    records = [synthetic.ok(FORWARD, latency, repeat=n) for n, latency in enumerate((0.3, 0.33, 0.306))]
    [row] = table_of(*records).to_dict("records")
    medians = sorted(median(record.samples_ms) for record in records)
    assert row["latency_ms"] == medians[1]
    assert row["process_spread"] == pytest.approx((medians[2] - medians[0]) / medians[1])
    assert (row["samples"], row["processes"], row["status"]) == (90, 3, "ok")


@pytest.mark.parametrize(
    ("processes", "interval"),
    [
        ([[1.0, 0.9, 1.1], [2.0, 1.9, 2.1], [4.0, 3.96, 4.04]], (2.0, 1.9, 2.1)),  # as wide as in the median process
        ([[1.0, 0.9, 1.1], [1.5, 1.35, 1.65]], (1.25, 1.125, 1.375)),  # not wider although the medians differ
        ([[0.0, 0.0], [0.0]], (0.0, 0.0, 0.0)),
    ],
)
def test_the_interval_is_within_a_process(processes, interval):
    assert pooled_interval(processes) == pytest.approx(interval)


def test_a_case_is_ok_if_any_process_was_and_notes_the_failed_ones():
    row = table_of(synthetic.lost(FORWARD, "killed", "signal 9"), synthetic.ok(FORWARD, 3.0, repeat=1)).iloc[0]
    assert (row["status"], row["reason"], row["samples"], row["processes"]) == ("ok", "", 30, 1)
    assert row["notes"] == "process 1 of 2: killed: signal 9"


def test_rates_and_memory_follow_from_latency_tokens_and_bytes():
    record = Record(FORWARD, "ok", samples_ms=[0.4], throttled=[False], tokens=32_768, peak_memory_bytes=3_500_000_000)
    row = table_of(record).iloc[0]
    assert row["us_per_token"] == pytest.approx(400 / 32_768)
    assert row["tokens_per_s"] == pytest.approx(32_768 / 0.0004)
    assert row["peak_memory_gb"] == pytest.approx(3.5)


def test_processes_of_a_case_have_the_largest_memory_and_the_first_start():
    def process(repeat, memory, day):
        started_at = f"2026-03-0{day}T10:00:05+00:00" if day else ""
        return synthetic.ok(FORWARD, 3.0, repeat=repeat, peak_memory_bytes=memory, started_at=started_at)

    row = table_of(process(0, int(3e9), 2), process(1, int(5e9), 1), process(2, int(4e9), 0)).iloc[0]
    assert row["peak_memory_gb"] == 5.0
    assert row["started_at"] == "2026-03-01T10:00:05+00:00"


def test_rates_of_processes_with_different_sequence_counts_are_per_token():
    times = ((10.0, 20), (12.0, 24), (18.0, 30))  # 2, 2 and 5/3 tokens/ms
    records = [
        Record(OTHER, "ok", samples_ms=[ms], throttled=[False], tokens=tokens, repeat=repeat)
        for repeat, (ms, tokens) in enumerate(times)
    ]
    records[1].throttled[:] = [True]
    row = table_of(*records).iloc[0]
    assert (row["us_per_token"], row["tokens_per_s"], row["throttled"]) == pytest.approx((500.0, 2000.0, 1))
    assert row["notes"].startswith("only 3 samples in 3 processes")
    assert math.isnan(table_of(*records[:2], replace(records[2], tokens=0)).iloc[0]["tokens_per_s"])


def ends_of_interval(half):
    """Return nine samples in ms; the 95% interval of their median is from 3 (1 - half) to 3 (1 + half)."""
    return [3.0 * (1 + half * at) for at in (1, -1, 0, 1, -1, 0, 0, 0, 0)]


def quartiles(apart, count):
    """Return `count` samples in ms: they alternate between 3 and 3 (1 + apart); the last one is the mean of the two."""
    return [*(3.0 * (1 + apart * (n % 2)) for n in range(count)), 3.0 * (1 + apart / 2)][-count:]


def drifted(by, early):
    """Return 32 samples: `early` samples of 3 (1 + by) ms, then 3 ms. Drift compares the first 8 with the last 8."""
    return [3.0 * (1 + by)] * early + [3.0] * (32 - early)


@pytest.mark.parametrize(
    ("samples", "flags"),
    [
        (ends_of_interval(0.09), ""),
        (ends_of_interval(0.11), "unsteady"),
        (quartiles(0.09, 200), ""),
        (quartiles(0.11, 200), "unsteady"),
        (quartiles(0.5, 5), "few samples"),
        (drifted(0.049, 9), ""),
        (drifted(0.051, 9), "unsteady"),
        (drifted(0.06, 3), ""),
    ],
)
def test_samples_are_unsteady_by_their_interval_their_quartiles_or_their_drift(samples, flags):
    record = replace(synthetic.ok(FORWARD, 3.0, count=len(samples)), samples_ms=samples)
    row = frame([record], Catalogue()).iloc[0]
    assert row.get("flags", "") == flags
    assert bool(row.get("notes", "")) is bool(flags)


@pytest.mark.parametrize(
    ("high", "count", "flags", "notes"),
    [
        (221.0, 7, "unsteady TTFT", "unsteady TTFT: 95% interval from 180 to 221 ms"),
        (219.0, 7, "", ""),
        (221.0, 5, "few samples", "only 5 samples: the bar is their range, not a 95% interval"),
    ],
)
def test_a_request_is_unsteady_if_one_of_its_times_is(high, count, flags, notes):
    first = {"time_to_first_token_ms": 200.0, "time_to_first_token_ms_low": 180.0, "time_to_first_token_ms_high": high}
    request = replace(FORWARD, phase="request")
    row = frame([synthetic.ok(request, 900.0, count=count, metrics=first)], Catalogue()).iloc[0]
    assert (row.get("flags", ""), row.get("notes", "")) == (flags, notes)


def test_a_flag_concerns_only_its_own_column():
    cell = "few samples, unsteady TTFT"
    assert flags_in(cell) == ("few samples", "unsteady TTFT")
    assert flags_in(cell, "time_to_first_token_ms") == ("few samples", "unsteady TTFT")
    assert flags_in(cell, "inter_token_latency_ms") == flags_in(cell, "latency_ms") == ("few samples",)
    assert {flags_in("cache full, unsteady", y) for y in ("state_bytes", "total_variation_mean")} == {("cache full",)}
    assert flags_in("cache full, unsteady", "tokens_per_s") == ("cache full", "unsteady")


@pytest.mark.parametrize(
    ("environment", "flags"),
    [
        ({"cpu": {"others_share": 0.43, "idle_share": 0.01}}, "contended"),
        ({"gpu": {"after": {"throttle_reasons": ["sw_thermal_slowdown"], "temperature_c": 88}}}, "thermally throttled"),
    ],
)
def test_one_contended_or_hot_process_flags_the_case(environment, flags):
    records = [synthetic.ok(FORWARD, 3.0, repeat=n, environment=each) for n, each in enumerate(({}, environment, {}))]
    assert frame(records, Catalogue())["flags"].tolist() == [flags]


def test_a_process_that_failed_on_a_contended_machine_flags_no_timed_process():
    loaded = synthetic.environment() | {"cpu": {"others_share": 0.9, "idle_share": 0.0}}
    lost = Record(FORWARD, "failed", "late", repeat=2, environment=loaded)
    records = [*(synthetic.ok(FORWARD, 3.0, repeat=n, environment=synthetic.environment()) for n in (0, 1)), lost]
    assert FLAGS not in frame(records, Catalogue())  # no row has a flag


def test_a_failed_process_counts_only_if_all_processes_failed():
    records = [synthetic.ok(FORWARD, 3.0, repeat=n, peak_memory_bytes=int(3e9)) for n in range(2)]
    late = Record(FORWARD, "timeout", "no end in 60 s", repeat=2, peak_memory_bytes=int(9e9), metrics={"wings": 9.0})
    row = table_of(replace(records[0], metrics={"wings": 1.0}), records[1], late).iloc[0]
    assert (row["processes"], row["samples"], row["peak_memory_gb"], row["wings"]) == (2, 60, 3.0, 1.0)
    assert row["process_spread"] == 0
    lost = table_of(late, replace(late, repeat=0, peak_memory_bytes=int(8e9))).iloc[0]
    assert (lost["processes"], lost["samples"], lost["peak_memory_gb"]) == (2, 0, 9.0)


def test_metrics_of_repeats_are_their_median():
    values = (1.0, None, 9.0, 2.0)
    records = [synthetic.ok(FORWARD, 3.0, repeat=n, metrics={"wings": value}) for n, value in enumerate(values)]
    assert table_of(*records)["wings"].tolist() == [2.0]


def test_a_failed_case_has_a_row_with_reason_and_memory():
    row = table_of(Record(FORWARD, "oom", "needs 90 GB", peak_memory_bytes=80_000_000_000)).iloc[0]
    assert (row["status"], row["reason"], row["peak_memory_gb"]) == ("oom", "needs 90 GB", 80.0)
    assert "notes" not in row
    assert all(math.isnan(row[name]) for name in ("latency_ms", "latency_ms_low", "us_per_token", "tokens_per_s"))


@pytest.mark.parametrize("fields", [{"tokens": 0}, {"samples_ms": [0.0], "throttled": [False], "tokens": 5}])
def test_no_rate_without_tokens_or_time(fields):
    record = Record(FORWARD, "ok", **({"samples_ms": [2.0], "throttled": [False]} | fields))
    assert math.isnan(table_of(record).iloc[0]["tokens_per_s"])


def test_an_option_cannot_overwrite_a_column():
    options = (("batch", "mine"), ("samples", "yours"), ("lower_bound_ms", "his"), ("wings", "hers"))
    record = synthetic.ok(replace(OTHER, batch=7, options=options), 1.0, metrics={"wings": 2})
    row = table_of(record).iloc[0]
    assert (row["option_lower_bound_ms"], row["option_wings"], row["wings"]) == ("his", "hers", 2)
    assert (row["batch"], row["option_batch"], row["samples"], row["option_samples"]) == (7, "mine", 30, "yours")


def test_an_options_default_is_filled_in_if_other_cases_of_the_backend_and_phase_set_it():
    plain = replace(FORWARD, options=())
    steps = replace(plain, phase="generate")
    table = table_of(*(synthetic.ok(case, 3.0) for case in (FORWARD, plain, OTHER, steps)))
    assert [str(value) for value in table["mini_batch"]] == ["32", "16", "<NA>", "<NA>"]


def test_an_options_default_is_filled_in_across_suites():
    fla = replace(FORWARD, backend="fla", options=())
    members = [("fig8-minibatch", FORWARD), ("fig8-minibatch", fla), ("another", replace(fla, context=4096))]
    made = synthetic.made([(suite, synthetic.ok(case, 3.0)) for suite, case in members])
    assert made.table["mini_batch"].tolist() == [32, 16, 16]


@pytest.mark.parametrize(("size", "millions"), [("125m", 125), ("1.3b", 1300), ("tiny", None), ("1.3b/4", None)])
def test_a_models_size_is_a_number(size, millions):
    found = synthetic.of_suite("s", synthetic.ok(Case("s", "b", size, "forward", 1, 8), 1.0, metrics={})).table
    assert found.to_dict("records")[0].get("model_size") == millions


def test_rates_of_a_token():
    case = Case("ttt-linear", "triton-dual", "1.3b", "generate", 4, 2048)
    metrics = {"flops": 8e9, "bytes": 1e9, "product_tflops": 500.0, "copy_gbs": 3000.0, "energy_j_per_token": 0.25}
    record = synthetic.ok(case, 2.0, metrics=metrics)
    record = replace(record, samples_ms=[2.0] * 30)
    (row,) = frame([record], Catalogue()).to_dict("records")
    # 8 GFLOP in 2 ms are 4 TFLOP/s; one token of each of 4 sequences in 2 ms
    found = [row[name] for name in ("tokens_per_s_each", "flops_per_token", "flops_share", "tokens_per_j")]
    assert found == pytest.approx([500.0, 2e9, 0.008, 4.0])
    layer = replace(record, case=replace(case, options=(("scope", "layer"),)))
    assert not {"tokens_per_s_each", "flops_share"} & set(frame([layer], Catalogue()))
