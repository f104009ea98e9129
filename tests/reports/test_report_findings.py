"""The sentence about a figure and the findings of a page name the right winners, ranges and failures."""

from dataclasses import replace

import pytest
import synthetic_records as synthetic
from headline_records import FAST, SLOW, finding, forward, headline_of, spread, stepped, throughput, views_of, winner

from harness.schema.case import Case
from harness.schema.reason import format_number
from reports.page import findings
from reports.page.findings import small_models, unfinished
from reports.page.html import render
from reports.page.ranking import Point, View, bar, views
from reports.words import left_out

CONTEXTS = (1024, 2048, 4096, 8192)
MANY = tuple(1024 << power for power in range(10))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ({2048: 4.0, 8192: 4.0}, {2048: 5.0, 8192: 10.0}, "at every context, 2.50 times as fast as Transformer at 8k."),
        ({8192: 4.0}, {2048: 9.0, 8192: 10.0}, "is fastest at context 8k, 2.50 times as fast as Transformer at 8k."),
        (dict.fromkeys(CONTEXTS[:2], 4.0), dict.fromkeys(CONTEXTS, 5.0), "is fastest at context 1k to 2k, 1.25 times"),
        (dict.fromkeys(CONTEXTS[2:], 4.0), dict.fromkeys(CONTEXTS, 5.0), "is fastest at context 4k to 8k, 1.25 times"),
        (dict.fromkeys(CONTEXTS[1:3], 4.0), dict.fromkeys(CONTEXTS, 5.0), "is fastest at context 2k to 4k,"),
        ({1024: 4.0, 8192: 4.0}, dict.fromkeys(CONTEXTS, 5.0), "TTT-Linear is fastest at context 1k and 8k,"),
        (
            {2048: 4.0, 8192: 4.0},
            {2048: 8.0, 8192: 4.1},
            "TTT-Linear is fastest at context 2k, 2.00 times as fast as Transformer at 2k; "
            "TTT-Linear and Transformer are equal within 5% at context 8k.",
        ),
        (
            dict.fromkeys(CONTEXTS, 4.0),
            dict(zip(CONTEXTS, (2.0, 8.0, 2.0, 8.0), strict=True)),
            "Transformer is fastest at context 1k and 4k; TTT-Linear is fastest at context 2k and 8k, 2.00 times",
        ),
        (
            dict.fromkeys(MANY, 4.0),
            dict(zip(MANY, (4.1, 8.0, 4.1, 4.1, 4.1, 16.0, 4.1, 4.1, 4.1, 4.1), strict=True)),
            "TTT-Linear and Transformer are equal within 5% at 8 of 10 values of context.",
        ),
        (
            dict.fromkeys(MANY, 4.0),
            dict(zip(MANY, (8.0, 4.1, 8.0, 12.0, 4.1, 16.0, 4.1, 8.0, 4.1, 8.0), strict=True)),
            "TTT-Linear is fastest at 6 of 10 values of context, 2.00 times as fast as Transformer at 512k.",
        ),
    ],
)
def test_who_is_fastest_where_and_by_how_much(ours, theirs, expected):
    assert expected in winner(ours, theirs)


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ((2.0, 3.0, 5.0, 9.0), ["Transformer is faster than TTT-Linear up to context 2k and slower from 4k on."]),
        ((2.0, 4.1, 3.9, 9.0), ["Transformer is faster than TTT-Linear at context 1k and slower from 8k on."]),
        ((2.0, 9.0, 4.1, 4.1), []),
        ((4.1, 2.0, 9.0, 9.0), []),
        ((2.0, 4.1, 2.0, 9.0), []),
        ((2.0, 4.1, 2.0, 2.0), []),
        ((9.0, 5.0, 4.1, 3.0), ["TTT-Linear is faster than Transformer up to context 2k and slower from 8k on."]),
        ((2.0, 9.0, 2.0, 9.0), []),
        ((5.0, 6.0, 7.0, 9.0), []),
    ],
)
def test_where_two_lines_cross(theirs, expected):
    ours = forward(dict.fromkeys(CONTEXTS, 4.0))
    made = synthetic.of_suite("fig15-forward", *ours, *forward(dict(zip(CONTEXTS, theirs, strict=True)), *SLOW))
    assert findings.crossings(views_of(made)[0]) == expected


def test_lines_of_throughput_cross_where_the_higher_one_changes():
    made = synthetic.of_suite(
        "fig20-throughput", *stepped("mamba", {1: 1.0, 8: 4.0}), *stepped("ttt-linear", {1: 2.0, 8: 3.0})
    )
    (view,) = (each for each in views_of(made) if each.figure.id == "fig20-throughput-generate")
    expected = ["Mamba is faster than TTT-Linear at batch 1 and slower from 8 on."]
    assert findings.crossings(view) == expected


def test_the_name_and_the_unit_of_the_x_axis_in_a_sentence():
    records = (*forward({2048: 4.0}), *forward({2048: 5.0}, *SLOW))
    sized = [replace(each, case=replace(each.case, size=size)) for each in records for size in ("125m", "1.3b")]
    assert "model size, 1.25 times as fast as Transformer at 1300 million" in finding(*sized, suite="model-sizes")


@pytest.mark.parametrize(("theirs", "is_equal"), [(4.19, True), (4.21, False), (3.82, True), (3.8, False)])
def test_values_within_five_percent_are_equal(theirs, is_equal):
    found = winner({2048: 4.0, 4096: 4.0}, {2048: theirs, 4096: theirs})
    assert (("equal within 5%" in found), ("fastest" in found)) == (is_equal, not is_equal)


def test_overlapping_intervals_are_indistinguishable():
    assert "indistinguishable" in finding(
        *spread({2048: 4.0}, 0.08, count=8), *spread({2048: 4.25}, 0.08, *SLOW, count=8)
    )
    assert "TTT-Linear is fastest" in finding(*spread({2048: 4.0}, 0.04), *spread({2048: 4.4}, 0.04, *SLOW))


@pytest.mark.parametrize(("theirs", "is_ranked"), [(4.1, False), (5.0, False), (7.0, True)])
def test_a_flagged_point_wins_only_by_a_large_margin(theirs, is_ranked):
    loaded = synthetic.environment() | {"cpu": {"others_share": 0.5, "idle_share": 0.0}}
    for flagged in (spread({2048: theirs}, 0.0, *SLOW, count=3), forward({2048: theirs}, *SLOW, environment=loaded)):
        found = finding(*forward({2048: 4.0}), *flagged)
        assert ("too uncertain to rank" in found, "fastest" in found) == (not is_ranked, is_ranked)


@pytest.mark.parametrize("theirs", [4.1, 120.0])
def test_a_contended_cpu_ranks_no_times(theirs):
    cpu = {"model": "Xeon", "others_share": 0.5, "idle_share": 0.0}
    loaded = synthetic.environment() | {"device": "Xeon", "device_kind": "cpu", "gpu": None, "cpu": cpu}
    ours, slow = (dict.fromkeys(CONTEXTS, us) for us in (4.0, theirs))
    records = [*forward(ours, environment=loaded | {"cpu": {}}), *forward(slow, *SLOW, environment=loaded)]
    assert "are too uncertain to rank at every context" in finding(*records)
    best = throughput(
        *stepped("ttt-linear", {64: 8.0}, environment=loaded), *stepped("mamba", {64: 2 * theirs}, environment=loaded)
    )
    assert "too uncertain to rank against Mamba" in best
    states = [
        synthetic.ok(replace(record.case, batch=1), 1.0, environment=loaded, metrics={"state_bytes": size})
        for size, record in zip((9e6, 10e6), (*forward({8192: 4.0}), *forward({8192: 4.0}, *SLOW)), strict=True)
    ]
    sizes = findings.finding(views_of(synthetic.of_suite("long-context", *states))[1])
    assert sizes == "TTT-Linear has the least: 9.00 MB at context 8k, Transformer 10.0."


@pytest.mark.parametrize(("theirs", "is_ranked"), [(4.1, False), (5.1, False), (5.3, True)])
def test_a_cpu_ranks_only_points_that_are_far_apart(theirs, is_ranked):
    idle = synthetic.environment() | {"device": "EPYC", "device_kind": "cpu", "gpu": None}
    found = finding(*forward({2048: 4.0}, environment=idle), *forward({2048: theirs}, *SLOW, environment=idle))
    assert ("too uncertain to rank" in found, "fastest" in found) == (not is_ranked, is_ranked)
    gpu = synthetic.environment(device_id="")
    assert "uncertain" not in finding(*forward({2048: 4.0}), *forward({2048: theirs}, *SLOW, environment=gpu))


def test_the_ranking_omits_other_backends_and_lost_systems():
    gone = [synthetic.lost(Case("mamba", "mamba-ssm", "1.3b", "forward", 16, 2048), "oom", "no")]
    unlisted = forward({2048: 1.0}, "transformer", "torch")
    assert "TTT-Linear is fastest" in finding(*forward({2048: 4.0}), *forward({2048: 5.0}, *SLOW), *unlisted, *gone)


def test_a_line_without_a_case_may_be_the_fastest():
    others = forward({2048: 5.0, 8192: 9.0}, *SLOW) + forward({2048: 7.0, 8192: 7.0}, "mamba", "mamba-ssm")
    ahead = "TTT-Linear is fastest at context 2k, 1.25 times as fast as Transformer at 2k"
    assert finding(*forward({2048: 4.0}), *others) == f"{ahead}."
    no_memory = synthetic.lost(Case(*FAST, "1.3b", "forward", 16, 8192), "oom", "no")
    assert "Mamba is fastest at context 8k" in finding(*forward({2048: 4.0}), no_memory, *others)


def layered(context, ms, system="ttt-linear", backend="torch", **case):
    return synthetic.ok(Case(system, backend, "125m", "generate", 8, context, **case), ms, spread=0.0)


def test_only_cases_with_equal_settings_are_compared():
    elsewhere = forward({2048: 1.0}, "mamba", "mamba-ssm", environment=synthetic.environment("H200"))
    found = finding(*forward({2048: 4.0}), *forward({2048: 5.0}, *SLOW), *elsewhere)
    assert found == f"Device {synthetic.H100}: TTT-Linear is fastest, 1.25 times as fast as Transformer at context 2k."
    ours = [layered(context, 4.0) for context in (64, 128)]
    theirs = [layered(context, 8.0, "mamba") for context in (64, 128)]
    assert finding(*ours, *theirs, suite="quick").startswith("Context 128: TTT-Linear is fastest")
    found = finding(*ours, theirs[0], layered(64, 4.1, "ttt-mlp"), suite="quick")
    assert found.startswith("Context 64: TTT-Linear and TTT-MLP are equal within 5%")
    assert "fastest" not in finding(*ours, layered(256, 4.0, "mamba"), suite="quick")


def test_a_label_is_short_if_it_is_unique():
    ours = [layered(context, 4.0, backend=backend) for backend in ("torch", "triton-dual") for context in (64, 128)]
    found = finding(*ours, suite="quick")
    assert found == "Context 128: TTT-Linear · Triton dual and PyTorch are equal within 5%."
    states = [layered(64, 4.0, "ttt-mlp", "triton-dual", state_dtype=state) for state in ("float16", "bfloat16")]
    slow = layered(64, 9.0, "ttt-mlp", "triton-primal", state_dtype="bfloat16")
    found = finding(*states, slow, suite="quick")
    assert found == "TTT-MLP · Triton dual · state bfloat16 and state float16 are equal within 5%."


def test_an_option_of_one_system_does_not_split_others():
    ours = [layered(64, ms, options=(("mini_batch", size),)) for size, ms in ((8, 4.0), (32, 6.0))]
    found = finding(*ours, layered(64, 9.0, "mamba"), suite="quick")
    assert found.startswith("Mini-batch 32: TTT-Linear is fastest, 1.50 times as fast as Mamba")
    ours = layered(64, 4.0, state_dtype="float32")
    assert "TTT-Linear is fastest" in finding(ours, layered(64, 9.0, "mamba", state_dtype="bfloat16"), suite="quick")


def test_default_options_win_between_equal_sets():
    def layer(system, size, ms):
        options = (("mini_batch", size), ("scope", "layer")) if size != 16 else (("scope", "layer"),)
        return synthetic.ok(Case(system, "thunderkittens", "1.3b", "forward", 16, 2048, options=options), ms)

    records = [layer(system, size, ms) for size in (16, 32) for system, ms in (("ttt-linear", size), ("ttt-mlp", 99.0))]
    assert "Mini-batch 16: TTT-Linear is fastest" in finding(*records, suite="mini-batch")


def test_a_figure_of_ratios_states_their_range():
    made = synthetic.paper()
    drawn = next(each for each in synthetic.paper_figures() if each.lines[0].base_rows)
    ms = made.table["latency_ms"]
    ratios = [ms[a] / ms[b] for line in drawn.lines for a, b in zip(line.rows, line.base_rows, strict=True)]
    found = findings.finding(View(made.table, made.catalogue, drawn))
    assert f"{format_number(min(ratios))} to {format_number(max(ratios))} times" in found


def test_parts_of_one_computation_are_added():
    def part(name, size, ms):
        options = (("mini_batch", size), ("part", name), ("scope", "layer"))
        return synthetic.ok(Case("ttt-linear", "torch", "1.3b", "forward", 1, 2048, options=options), ms, spread=0.0)

    times = {8: (9.0, 1.0), 32: (4.0, 2.0), 64: (3.0, 8.0)}
    found = finding(
        *(part(name, size, ms) for size, both in times.items() for name, ms in zip("wz", both, strict=True)),
        part("w", 128, 1.0),
        suite="fig8-minibatch",
    )
    assert found == "The total of w and z is least at mini-batch 32: 6.00 ms."


def test_a_single_line_states_its_range():
    assert finding(*forward({2048: 4.0, 4096: 6.0})) == "TTT-Linear: 4.00 to 6.00 µs over context 2k to 4k."


def test_a_figure_without_a_result_says_so():
    lost = synthetic.lost(Case(*FAST, "1.3b", "forward", 16, 4096), "failed", "no")
    assert finding(lost) == "No case has a result."


def test_cold_and_warm_l2_are_not_compared():
    def layers(l2, latency_ms):
        size, layer = {"size": "1.3b", "phase": "forward", "batch": 16}, {"options": (("scope", "layer"),)}
        cases = [Case(*FAST, **size, context=context, timing="graph", l2=l2, **layer) for context in (2048, 8192)]
        return [synthetic.ok(case, latency_ms * case.context / 2048, spread=0.0) for case in cases]

    assert "fastest" not in finding(*layers("cold", 1.0), *layers("warm", 1.2), suite="kernel-forward")


def test_the_best_throughput_and_where():
    found = throughput(*stepped("ttt-linear", {64: 8.0, 128: 8.0, 256: 32.0}), *stepped("mamba", {64: 8.0, 128: 16.0}))
    assert found == "TTT-Linear reaches 16,000 tokens/s at batch 128, 2.00 times Mamba."
    found = throughput(*stepped("ttt-linear", {64: 8.0}), *stepped("mamba", {64: 7.9}))
    assert found == "Mamba reaches 8,100 tokens/s at batch 64, equal within 5% to TTT-Linear."


def test_the_best_throughput_compares_equal_settings():
    def reaches(system, backend, ms, context):
        case = Case(system, backend, "1.3b", "generate", 64, context, timing="graph")
        return synthetic.ok(case, ms, spread=0.0)

    ours = [reaches("ttt-linear", "triton-dual", ms, context) for ms, context in ((4.0, 1024), (8.0, 2048))]
    found = throughput(*ours, reaches("mamba", "mamba-ssm", 16.0, 2048))
    assert found.startswith("Context 2k: TTT-Linear reaches 8,000 tokens/s at batch 64")


def test_a_system_not_tried_at_the_best_batch_is_not_ranked():
    best, small = stepped("transformer", {1: 8.0, 1024: 16.0}), stepped("ttt-linear", {1: 4.0})
    assert "times" not in throughput(*best, *small)
    found = throughput(*best, *small, *stepped("mamba", {64: 8.0}, lost=(2048,)))
    assert found == "Transformer reaches 64,000 tokens/s at batch 1k, 8.00 times Mamba."


def test_an_unlisted_system_is_ranked_by_its_results():
    ours, theirs = stepped("ttt-linear", {64: 8.0}), stepped("mamba", {64: 16.0})
    case = Case("rwkv7", "fla", "1.3b", "generate", 64, 2048, timing="graph")
    other = [synthetic.ok(case, 10.0, spread=0.0), synthetic.lost(replace(case, batch=128), "oom", "no memory")]
    assert "1.25 times RWKV-7" in throughput(*ours, *theirs, *other)
    assert "RWKV-7" not in throughput(*ours, *theirs, other[1])
    slow, headline = (replace(case, system="transformer", backend=backend) for backend in ("torch", "vllm"))
    missing = synthetic.lost(headline, "skipped", "not installed")
    assert "Transformer" not in throughput(*ours, *theirs, missing, synthetic.ok(slow, 10.0, spread=0.0))


@pytest.mark.parametrize(("theirs", "expected"), [((128,), "at batch 128"), ((128, 256), "at batch 128"), ((), "")])
def test_out_of_memory_is_named_at_the_smallest_x(theirs, expected):
    records = [*stepped("ttt-linear", {64: 8.0}), *stepped("mamba", {64: 8.0}, lost=theirs)]
    found = [sentence for sentence in headline_of(*records, suite="fig20-throughput") if "memory" in sentence]
    assert [("Mamba" in each, "TTT-Linear" in each, expected in each) for each in found] == (
        [(True, False, True)] if expected else []
    )


def test_a_page_of_a_cpu_has_a_notice():
    made = synthetic.of_suite("quick", synthetic.ok(Case("ttt-linear", "torch", "tiny", "forward", 2, 64), 1.0))
    assert small_models(made.table, ["cpu", "cpu"]).startswith("Small models (tiny) on a CPU")
    assert small_models(made.table, ["cpu", "cuda"]) == ""
    on_cpu = [replace(record, environment={"device_kind": "cpu", "device": "Xeon"}) for record in made.records]
    pages = [render(records, made.catalogue)[0] for records in (made.records, on_cpu)]
    assert ["Small models" in page for page in pages] == [False, True]


def test_a_rate_is_higher_for_the_faster():
    made = synthetic.of_suite("fig15-forward", *forward({8192: 4.0}), *forward({8192: 10.0}, *SLOW))
    [suite] = made.catalogue.suites
    figure = replace(suite.figures[0], y="tokens_per_s")
    catalogue = replace(made.catalogue, suites=(replace(suite, figures=(figure,)),))
    drawn = views(made.records, made.table, catalogue)
    found = findings.finding(drawn[0])
    assert "TTT-Linear is fastest, 2.50 times as fast as Transformer" in found
    claims = " ".join(findings.headline(made.table, catalogue, drawn))
    assert "from 8k tokens on” holds at 8k: TTT-Linear is 2.50 times as fast as Transformer." in claims


def test_a_value_has_the_bar_of_its_own_interval_or_the_inverse_of_its_latencys():
    cells = {"energy_j_per_token": 4.0, "energy_j_per_token_low": 3.0, "energy_j_per_token_high": 6.0}
    assert bar(cells, "energy_j_per_token") == (0.75, 1.5)
    cells = {"tokens_per_s": 100.0, "latency_ms": 4.0, "latency_ms_low": 3.2, "latency_ms_high": 8.0}
    assert bar(cells, "tokens_per_s") == pytest.approx((0.5, 1.25))


def test_points_with_overlapping_intervals_are_indistinguishable_unless_equal():
    a, b = Point(1, 4.0, 3.8, 4.2), Point(1, 4.1, 3.9, 4.3)
    assert a.is_equal(b)
    assert not a.is_indistinguishable(b)
    assert Point(1, 4.0, 3.0, 7.5, 0.5).is_indistinguishable(Point(1, 7.0, 6.9, 7.1, 0.0))


def test_the_page_counts_flagged_cases():
    wide = synthetic.of_suite("fig15-forward", *spread({2048: 4.0}, 0.4), *spread({2048: 4.0}, 0.0, *SLOW, count=3))
    page = render(wide.records, wide.catalogue)[0]
    assert "2 of 2 measured" in page
    assert "1 with fewer than 6 samples, 1 unsteady" in page


@pytest.mark.parametrize(("others", "who"), [({}, "vLLM"), ({2048: 9.0}, "Transformer on vLLM")])
def test_a_baseline_without_an_environment_is_named(others, who):
    why = "its environment failed to install (log: .venv-vllm.log)"
    gone = synthetic.lost(Case(*SLOW, "1.3b", "forward", 16, 2048), "skipped", why)
    made = synthetic.of_suite("fig15-forward", *forward({2048: 4.0}), gone, *forward(others, "mamba", "vllm"))
    drawn = views_of(made)
    assert f"No {who}: {why}." in findings.headline(made.table, made.catalogue, drawn)


def test_a_baseline_with_several_reasons_is_named_with_all_of_them():
    cases = [
        Case(system, "vllm", "1.3b", "forward", 16, context)
        for system in ("mamba", "transformer")
        for context in (1, 2)
    ]
    why = ("no environment.", "no environment.", "no environment.", "batch 8 did not fit")
    gone = [synthetic.lost(case, "skipped", each) for case, each in zip(cases, why, strict=True)]
    made = synthetic.of_suite("fig15-forward", *gone)
    named = ["no Mamba on vLLM: no environment", "no Transformer on vLLM: no environment; batch 8 did not fit"]
    assert left_out(made.table, made.catalogue) == named
    one = synthetic.of_suite("fig15-forward", *gone[:3], synthetic.ok(cases[3], 4.0))
    assert left_out(one.table, one.catalogue) == named[:1]


def test_an_unfinished_run_counts_its_missing_cases():
    made = synthetic.of_suite("fig15-forward", *forward({2048: 4.0}))
    gone = [Case(*SLOW, "1.3b", "forward", 16, context) for context in (2048, 4096, 8192)]
    assert unfinished(made.table, 0) == ""
    assert unfinished(made.table, 1) == "Unfinished: 1 of the 2 planned cases has no record."
    page = render(made.records, made.catalogue, missing=gone)[0]
    assert "Unfinished: 3 of the 4 planned cases have no record." in page
