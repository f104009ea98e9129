"""Is each sentence at the top of the page true of the records, and left out or turned where it is not?"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import synthetic_records as synthetic
from headline_records import FAST, SLOW, forward, said, spread, stepped, throughput, winners

from harness.schema.case import Case
from reports.page.figures import figures
from reports.page.headline import described, headline, small_models
from reports.page.html import render
from reports.page.ranking import OFF, Point, View, bar, standings
from reports.spoken import said_number


def test_who_is_fastest_everywhere_and_by_how_much():
    found = winners({2048: 4.0, 8192: 4.0}, {2048: 5.0, 8192: 10.0})
    assert found == (
        "Forward latency per token: TTT-Linear is fastest at every context tried (2k to 8k); "
        "at 8k it takes 4.00 µs, 2.50 times as fast as Transformer, the next."
    )
    assert winners({2048: 9.0, 8192: 30.0}, {2048: 5.0, 8192: 10.0}).startswith(
        "Forward latency per token: Transformer is fastest at every context tried (2k to 8k); "
        "at 8k it takes 10.0 µs, 3.00 times"
    )


def test_by_how_much_is_told_where_one_is_ahead_if_not_at_the_end():
    """As where a sample of the longest prompts was held up."""
    found = winners({2048: 4.0, 8192: 4.0, 32768: 4.0}, {2048: 5.0, 8192: 10.0, 32768: 4.1})
    assert "are level at 32k; at 8k it takes 4.00 µs, 2.50 times as fast as Transformer, the next." in found


def test_a_system_on_unlike_terms_is_named_in_the_sentence():
    made = synthetic.of_suite("fig15-forward", *forward({2048: 4.0}), *forward({2048: 5.0}, *SLOW))
    drawn = figures(made.table, made.catalogue)
    words = "not checked for equal terms"
    found = headline(made.table, made.catalogue, drawn, uneven={(*SLOW, "1.3b", "bfloat16", ()): words})[0]
    assert found.endswith("as fast as Transformer, the next (not checked for equal terms: Transformer).")
    for model in (
        (*SLOW, "125m", "bfloat16", ()),
        (*SLOW, "1.3b", "float32", ()),
        ("transformer", "torch", "1.3b", "bfloat16", ()),
        (*SLOW, "1.3b", "bfloat16", (("mini_batch", 32),)),
    ):
        assert "equal terms" not in headline(made.table, made.catalogue, drawn, uneven={model: words})[0]


def test_no_sentence_is_empty():
    assert all(sentence.strip() for sentence in said(*forward({2048: 4.0}), *forward({2048: 5.0}, *SLOW)))


def test_where_lines_cross():
    found = winners({2048: 4.0, 4096: 4.0, 8192: 4.0}, {2048: 3.0, 4096: 4.1, 8192: 8.0})
    assert (
        "Transformer is fastest at 2k, TTT-Linear and Transformer are level at 4k, TTT-Linear is fastest at 8k; "
        "at 8k it takes 4.00 µs, 2.00 times"
    ) in found
    found = winners(dict.fromkeys((1024, 2048, 4096, 8192), 4.0), {1024: 2.0, 2048: 3.0, 4096: 8.0, 8192: 16.0})
    assert "Transformer is fastest up to 2k, TTT-Linear is fastest from 4k on" in found


def unmeasured(contexts, system, backend, status="oom"):
    """A case for each context that was tried, or skipped, and has no result."""
    return [synthetic.lost(Case(system, backend, "1.3b", "forward", 16, each), status, "no") for each in contexts]


def test_a_context_without_a_comparison_is_not_among_every_context_tried():
    theirs = dict.fromkeys((2048, 4096, 8192, 32768), 9.0)
    found = winners({2048: 4.0, 32768: 4.0}, theirs)
    assert "TTT-Linear is fastest at 2k and 32k; at 32k it takes 4.00 µs" in found
    found = winners({2048: 4.0, 4096: 4.0}, theirs)
    assert "TTT-Linear is fastest up to 4k; at 4k it" in found
    found = winners({4096: 4.0, 8192: 4.0}, theirs)
    assert "TTT-Linear is fastest from 4k to 8k; at 8k it" in found
    found = winners({8192: 4.0, 32768: 4.0}, theirs)
    assert "TTT-Linear is fastest from 8k on; at 32k it" in found
    assert "TTT-Linear is fastest at 8k; at 8k it" in winners({8192: 4.0}, theirs)


def test_a_failure_is_a_try_and_what_was_skipped_is_none():
    ours, theirs = forward({2048: 4.0, 4096: 4.0}), forward({2048: 5.0, 4096: 5.0}, *SLOW)
    assert "TTT-Linear is fastest up to 4k;" in said(*ours, *theirs, *unmeasured([8192], *SLOW))[0]
    skipped = [*unmeasured([8192], *SLOW, status="skipped"), *unmeasured([8192], *FAST, status="skipped")]
    assert "TTT-Linear is fastest at every context tried (2k to 4k);" in said(*ours, *theirs, *skipped)[0]


def test_a_line_without_a_result_is_named():
    ours = forward({2048: 4.0, 4096: 4.0, 8192: 4.0})
    mamba = forward({2048: 5.0, 4096: 5.0, 8192: 5.0}, "mamba", "mamba-ssm")
    nothing = unmeasured([2048, 4096, 8192], *SLOW)
    found = said(*ours, *mamba, *nothing)[0]
    assert "TTT-Linear is fastest at every context tried (2k to 8k); at 8k it" in found
    assert found.endswith("Mamba, the next (Transformer has no result).")
    partly = [*forward({2048: 6.0}, *SLOW), *unmeasured([4096, 8192], *SLOW)]
    assert said(*ours, *mamba, *partly)[0].endswith("the next (Transformer has no result at 4k to 8k).")
    partly = [*forward({4096: 6.0}, *SLOW), *unmeasured([2048, 8192], *SLOW)]
    assert said(*ours, *mamba, *partly)[0].endswith("the next (Transformer has no result at 2k and 8k).")
    assert "no result" not in said(*ours, *mamba)[0]
    assert "no result" not in said(*ours, *mamba, *unmeasured([2048], "transformer", "torch"))[0]


def test_many_lines_without_a_result_are_counted():
    def steps(state, batches):
        cases = [
            Case("ttt-linear", "triton-dual", "1.3b", "generate", batch, 1, state_dtype=state, timing="graph")
            for batch in batches
        ]
        return [synthetic.ok(case, 1.0, spread=0.0) for case in cases]

    most = [record for state in ("float32", "float16") for record in steps(state, (1, 2, 4, 8, 16, 32))]
    few = [record for state in ("bfloat16", "float8", "int8", "int4") for record in steps(state, (2, 16))]
    made = synthetic.of_suite("kernel-generate", *most, *few)
    (drawn,) = figures(made.table, made.catalogue)
    assert described(made.table, made.catalogue, drawn).endswith("(4 lines have no result at 4 of these 6).")


def test_a_best_throughput_names_who_has_no_result():
    ran = [*stepped("ttt-linear", {64: 8.0, 128: 8.0}), *stepped("mamba", {64: 8.0}, lost=(128,))]
    found = throughput(*ran, *stepped("transformer", {}, lost=(64, 128)))
    assert "2.00 times that of Mamba, the next, at batch 64 (Transformer has no result)." in found


@pytest.mark.parametrize(("theirs", "level"), [(4.19, True), (4.21, False), (3.82, True), (3.8, False)])
def test_what_differs_by_less_than_runs_do_is_level(theirs, level):
    found = winners({2048: 4.0, 4096: 4.0}, {2048: theirs, 4096: theirs})
    assert ("are level" in found) is level
    assert ("fastest" in found) is not level


def test_bars_that_overlap_name_no_winner():
    found = said(*spread({2048: 4.0, 4096: 4.0}, 0.4), *spread({2048: 4.4, 4096: 12.0}, 0.4, *SLOW))[0]
    assert "TTT-Linear and Transformer are not told apart at 2k, TTT-Linear is fastest at 4k; at 4k it" in found
    assert "of 4 points, 4 unsteady" in found
    found = said(*spread({2048: 4.0}, 0.04), *spread({2048: 4.4}, 0.04, *SLOW))[0]
    assert "TTT-Linear is fastest" in found
    assert "unsteady" not in found


@pytest.mark.parametrize(("theirs", "told"), [(4.1, False), (5.0, False), (7.0, True)])
def test_what_is_doubtful_wins_only_by_far(theirs, told):
    loaded = synthetic.environment() | {"cpu": {"others_share": 0.5, "idle_share": 0.0}}
    for doubtful in (spread({2048: theirs}, 0.0, *SLOW, count=3), forward({2048: theirs}, *SLOW, environment=loaded)):
        found = said(*forward({2048: 4.0}), *doubtful)[0]
        assert ("are not told apart" in found) is not told
        assert ("is fastest" in found) is told
        assert "of 2 points, 1 " in found


@pytest.mark.parametrize(
    ("theirs", "words"),
    [(4.1, "are not told apart"), (120.0, "are not ranked")],
)
def test_a_cpu_that_others_use_tells_no_winner(theirs, words):
    """Threads that wait for one without a processor made one system 30 times slower, and another not."""
    cpu = {"model": "Xeon", "others_share": 0.5, "idle_share": 0.0}
    loaded = synthetic.environment() | {"device": "Xeon", "device_kind": "cpu", "gpu": None, "cpu": cpu}
    contexts = (2048, 4096, 8192)
    ours, slow = (dict.fromkeys(contexts, us) for us in (4.0, theirs))
    once, found, *_ = said(*forward(ours, environment=loaded), *forward(slow, *SLOW, environment=loaded))
    assert once == "Nothing is ranked: other programs ran beside all 6 cases."
    assert f"TTT-Linear and Transformer {words} at every context tried (2k to 8k) (of 6 points, 6 beside" in found
    best = throughput(
        *stepped("ttt-linear", {64: 8.0}, environment=loaded), *stepped("mamba", {64: 2 * theirs}, environment=loaded)
    )
    against = {
        4.1: "not told apart from Mamba",
        120.0: "not ranked against Mamba",
    }
    assert f"at batch 64, the only one tried, {against[theirs]} (of 2 points, 2 beside" in best


def test_what_other_programs_left_standing_is_ranked_beside_what_they_did_not():
    cpu = {"model": "Xeon", "others_share": 0.5, "idle_share": 0.0}
    idle = synthetic.environment() | {"device": "Xeon", "device_kind": "cpu", "gpu": None}
    ours = forward({2048: 4.0, 8192: 4.0}, environment=idle)
    slow = forward({2048: 8.0}, *SLOW, environment=idle)
    slow += forward({8192: 120.0}, *SLOW, environment=idle | {"cpu": cpu})
    assert said(*ours, *slow)[0].startswith(
        "Forward latency per token: TTT-Linear is fastest at 2k, "
        "TTT-Linear and Transformer are not ranked as other programs ran beside some of them at 8k; at 2k"
    )
    assert said(ours[1], slow[1])[0] == "Nothing is ranked: other programs ran beside 1 of the 2 cases."


def test_a_best_throughput_that_is_not_told_apart():
    few = [
        replace(record, samples_ms=record.samples_ms[:3], throttled=[False] * 3)
        for record in stepped("mamba", {64: 6.0})
    ]
    found = throughput(*stepped("ttt-linear", {64: 8.0}), *few)
    assert "Mamba reaches 10,700 tokens/s at batch 64, the only one tried, not told apart from TTT-Linear" in found
    assert "(of 2 points, 1 in fewer than 6 samples)" in found


def test_large_numbers_have_no_exponent():
    found = winners({2048: 3340.0}, {2048: 33400.0})
    assert "it takes 3,340 µs, 10.0 times as fast" in found


def test_numbers_keep_their_last_zeros():
    found = winners({2048: 4.198}, {2048: 9.1})
    assert "it takes 4.20 µs, 2.17 times as fast" in found
    assert said_number(float("nan")) == "nan"
    assert [said_number(each) for each in (0, 0.0999, 0.09996, 1, 99.96, 1146, 239_400)] == (
        ["0.00", "0.0999", "0.100", "1.00", "100", "1,150", "239,000"]
    )


def test_the_page_counts_what_is_doubtful():
    wide = synthetic.of_suite("fig15-forward", *spread({2048: 4.0}, 0.4), *spread({2048: 4.0}, 0.0, *SLOW, count=3))
    page = render(wide.records, wide.catalogue)
    assert "2 of 2 cases measured · 1 in fewer than 6 samples · 1 unsteady" in page


def test_numbers_of_two_machines_or_commits_say_so():
    elsewhere = synthetic.environment(commit="b" * 40)
    assert "not all from one machine and commit" in winners({2048: 4.0}, {2048: 5.0}, environment=elsewhere)
    beside = synthetic.environment(device_id="another")
    assert "(2 systems on 2 GPUs of one model)" in winners({2048: 4.0}, {2048: 5.0}, environment=beside)
    found = winners({2048: 4.0}, {2048: 5.0})
    assert "machine" not in found
    assert "GPUs" not in found


def test_other_backends_take_no_part():
    found = said(*forward({2048: 4.0}), *forward({2048: 5.0}, *SLOW), *forward({2048: 1.0}, "transformer", "torch"))
    assert "TTT-Linear is fastest" in found[0]


def layered(context, ms, system="ttt-linear", backend="torch", batch=8, **case):
    return synthetic.ok(Case(system, backend, "125m", "generate", batch, context, **case), ms, spread=0.0)


def test_only_cases_that_are_alike_are_compared():
    ours = [layered(context, 4.0) for context in (64, 128)]
    theirs = [layered(context, 8.0, "mamba") for context in (64, 128)]
    found = said(*ours, *theirs, suite="quick")[0]
    assert found.startswith(
        "Generate latency per token: for context 128, TTT-Linear is fastest; at batch 8 it takes 500 µs, 2"
    )
    found = said(*ours, theirs[0], layered(64, 4.1, "ttt-mlp"), suite="quick")[0]
    assert found.startswith("Generate latency per token: for context 64, TTT-Linear and TTT-MLP are level")
    assert said(*ours, layered(256, 4.0, "mamba"), suite="quick") == ["Every one of the 3 cases has a result."]


def test_what_a_sentence_holds_is_in_no_name():
    ours = [layered(context, 4.0, backend=backend) for backend in ("torch", "triton-dual") for context in (64, 128)]
    gone = [synthetic.lost(replace(ours[0].case, backend="primal", context=each), "oom", "no") for each in (64, 128)]
    found = said(*ours, *gone, suite="quick")[0]
    assert found == (
        "Generate latency per token: for context 128, TTT-Linear · Triton dual and TTT-Linear · PyTorch are level "
        "(TTT-Linear · primal has no result)."
    )


def test_a_name_keeps_what_alone_tells_it_from_another():
    lines = [SimpleNamespace(name=name, short="TTT") for name in ("TTT · PyTorch", "TTT · PyTorch · context 128")]
    assert View.labels(None, lines, ["context 128"]) == {line.name: line.name for line in lines}
    assert View.labels(None, lines[1:], ["context 128"]) == {lines[1].name: "TTT"}


def test_a_setting_that_a_system_chooses_itself_sets_it_apart_from_itself_alone():
    ours = [layered(64, ms, options=(("mini_batch", size),)) for size, ms in ((8, 4.0), (32, 6.0))]
    found = said(*ours, layered(64, 9.0, "mamba"), suite="quick")[0]
    assert found.startswith(
        "Generate latency per token: for mini-batch 32, TTT-Linear is fastest; at batch 8 it takes 750 µs, 1.50 times"
    )
    ours = layered(64, 4.0, state_dtype="float32")
    assert "TTT-Linear is fastest" in said(ours, layered(64, 9.0, "mamba", state_dtype="bfloat16"), suite="quick")[0]


def test_of_sets_as_large_that_of_the_usual_options_is_compared():
    def layer(system, size, ms):
        options = (("mini_batch", size), ("scope", "layer")) if size != 16 else (("scope", "layer"),)
        return synthetic.ok(Case(system, "thunderkittens", "1.3b", "forward", 16, 2048, options=options), ms)

    records = [layer(system, size, ms) for size in (16, 32) for system, ms in (("ttt-linear", size), ("ttt-mlp", 99.0))]
    made = synthetic.of_suite("mini-batch", *records)
    figure = figures(made.table, made.catalogue)[0]
    assert "for mini-batch 16, TTT-Linear is fastest" in described(made.table, made.catalogue, figure)


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        ((3.0, 6.4), "For mini-batch 32, TTT-Linear takes 1.50 to 1.60 times as long and TTT-MLP takes as long."),
        ((2.04, 3.96), "For mini-batch 32, TTT-Linear takes as long and TTT-MLP takes as long."),
        ((2.12, 4.24), "For mini-batch 32, TTT-Linear takes 1.06 times as long and TTT-MLP takes as long."),
        ((1.88, 3.76), "For mini-batch 32, TTT-Linear takes 0.940 times as long and TTT-MLP takes as long."),
    ],
)
@pytest.mark.parametrize("y", ["us_per_token", "tokens_per_s"])
def test_what_another_setting_costs_a_system_is_told_beside_the_ranking(ms, said, y):
    def layer(system, context, size, ms):
        options = (("mini_batch", size), ("scope", "layer")) if size != 16 else (("scope", "layer"),)
        return synthetic.ok(
            Case(system, "thunderkittens", "1.3b", "forward", 16, context, options=options), ms, spread=0.0
        )

    usual = [layer("ttt-linear", context, 16, took) for context, took in ((2048, 2.0), (8192, 4.0))]
    other = [layer("ttt-linear", context, 32, took) for context, took in zip((2048, 8192), ms, strict=True)]
    beside = [layer("ttt-mlp", context, size, 9.0) for context in (2048, 8192) for size in (16, 32)]
    made = synthetic.of_suite("mini-batch", *usual, *other, *beside)
    figure = replace(figures(made.table, made.catalogue)[0], y=y)
    assert described(made.table, made.catalogue, figure).endswith(said)
    few = synthetic.of_suite("mini-batch", *usual, other[1], *beside)
    assert "long at 8k and TTT-MLP takes" in described(few.table, few.catalogue, figures(few.table, few.catalogue)[0])
    one = synthetic.of_suite("mini-batch", *usual, *beside)
    assert "TTT-Linear takes" not in described(one.table, one.catalogue, figures(one.table, one.catalogue)[0])


def test_ratios_are_told_by_their_range():
    made = synthetic.paper()
    table, drawn = made.table, next(each for each in synthetic.paper_figures() if each.lines[0].base_rows)
    found = described(table, made.catalogue, drawn)
    for line in drawn.lines:
        ratios = [
            table["latency_ms"][a] / table["latency_ms"][b] for a, b in zip(line.rows, line.base_rows, strict=True)
        ]
        assert f"{line.name} {min(ratios):.3g} to {max(ratios):.3g}" in found


def test_parts_of_one_computation_are_added_and_not_ranked():
    def part(name, size, ms):
        options = (("mini_batch", size), ("part", name), ("scope", "layer"))
        return synthetic.ok(Case("ttt-linear", "torch", "1.3b", "forward", 1, 2048, options=options), ms, spread=0.0)

    times = {("w", 8): 5.0, ("z", 8): 1.0, ("w", 32): 2.0, ("z", 32): 1.5, ("w", 128): 1.0, ("z", 128): 4.0}
    made = synthetic.of_suite("fig8-minibatch", *(part(*at, ms) for at, ms in times.items()))
    found = described(made.table, made.catalogue, figures(made.table, made.catalogue)[0])
    assert "together they take least at mini-batch 32, 3.50 ms (" in found
    assert "fastest" not in found


def test_a_system_that_the_figure_does_not_name_is_ranked_by_its_results():
    ours, theirs = stepped("ttt-linear", {64: 8.0}), stepped("mamba", {64: 16.0})
    case = Case("rwkv7", "fla", "1.3b", "generate", 64, 2048, timing="graph")
    other = [synthetic.ok(case, 10.0, spread=0.0), synthetic.lost(replace(case, batch=128), "oom", "no memory")]
    found = throughput(*ours, *theirs, *other)
    assert "1.25 times that of RWKV-7, the next" in found
    assert "Did not fit in memory: RWKV-7 at batch 128 (generate throughput)." in found
    assert "RWKV-7" not in throughput(*ours, *theirs, other[1])
    slow = replace(case, system="transformer", backend="torch")  # of a system that the figure has on another backend
    assert "Transformer" not in throughput(*ours, *theirs, synthetic.ok(slow, 10.0, spread=0.0))


def test_the_best_throughput_is_of_cases_that_are_alike():
    def reaches(system, backend, ms, context):
        case = Case(system, backend, "1.3b", "generate", 64, context, timing="graph")
        return synthetic.ok(case, ms, spread=0.0)

    ours = [reaches("ttt-linear", "triton-dual", ms, context) for ms, context in ((4.0, 1024), (8.0, 2048))]
    found = throughput(*ours, reaches("mamba", "mamba-ssm", 16.0, 2048))
    assert "Generate throughput: for context 2k, TTT-Linear reaches 8,000 tokens/s at batch 64" in found


def test_one_line_alone_is_compared_with_nothing():
    assert not any("fastest" in sentence for sentence in said(*forward({2048: 4.0, 4096: 4.0})))


def test_a_cold_cache_is_not_told_to_be_faster_than_a_warm_one():
    def layers(l2, latency_ms):
        size, layer = {"size": "1.3b", "phase": "forward", "batch": 16}, {"options": (("scope", "layer"),)}
        cases = [Case(*FAST, **size, context=context, timing="graph", l2=l2, **layer) for context in (2048, 8192)]
        return [synthetic.ok(case, latency_ms * case.context / 2048, spread=0.0) for case in cases]

    made = synthetic.of_suite("kernel-forward", *layers("cold", 1.0), *layers("warm", 1.2))
    drawn = figures(made.table, made.catalogue)
    assert not any("fastest" in sentence for sentence in headline(made.table, made.catalogue, drawn))
    assert any(
        {made.table.loc[line.rows, "l2"].iloc[0] for line in figure.lines} == {"cold", "warm"} for figure in drawn
    )


def test_the_best_throughput_and_where():
    found = throughput(*stepped("ttt-linear", {64: 8.0, 128: 8.0, 256: 32.0}), *stepped("mamba", {64: 8.0, 128: 16.0}))
    assert (
        "Generate throughput: TTT-Linear reaches 16,000 tokens/s at batch 128, 2.00 times that of Mamba, the next"
        in found
    )
    found = throughput(*stepped("ttt-linear", {64: 8.0}), *stepped("mamba", {64: 7.9}))
    assert "Mamba reaches 8,100 tokens/s at batch 64, the only one tried, level with TTT-Linear" in found


def test_a_system_that_was_not_tried_at_the_batch_of_the_best_is_not_ranked():
    best, small = stepped("transformer", {1: 8.0, 1024: 16.0}), stepped("ttt-linear", {1: 4.0})
    assert "Generate throughput" not in throughput(*best, *small)
    found = throughput(*best, *small, *stepped("mamba", {64: 8.0}, lost=(2048,)))
    assert "Transformer reaches 64,000 tokens/s at batch 1k, 8.00 times that of Mamba, the next" in found


def test_a_page_of_a_cpu_says_that_it_is_not_the_papers():
    made = synthetic.of_suite("quick", synthetic.ok(Case("ttt-linear", "torch", "tiny", "forward", 2, 64), 1.0))
    assert small_models(made.table, ["cpu", "cpu"]) == (
        "Small models (tiny) on a CPU, NVIDIA H100 80GB HBM3: these are not the paper's figures, which need a GPU."
    )
    assert small_models(made.table, ["cpu", "cuda"]) == ""
    assert "Small models" not in render(made.records, made.catalogue)
    on_cpu = [replace(record, environment={"device_kind": "cpu", "device": "Xeon"}) for record in made.records]
    assert "Small models (tiny) on a CPU, Xeon:" in render(on_cpu, made.catalogue)


def test_hostile_names_and_single_points_make_a_page():
    hostile = synthetic.hostile()
    assert "<img" not in render(hostile.records, hostile.catalogue).split("</main>")[0]


def test_a_rates_bar_is_that_of_its_latency_turned_round():
    cells = {"tokens_per_s": 100.0, "latency_ms": 4.0, "latency_ms_low": 3.2, "latency_ms_high": 8.0}
    assert bar(cells, "tokens_per_s") == pytest.approx((0.5, 1.25))


def test_what_is_level_is_level_however_its_bars_overlap_and_wide_bars_hide_what_is_doubtful():
    a, b = Point(1, 4.0, 3.8, 4.2, 0.0), Point(1, 4.1, 3.9, 4.3, 0.0)
    assert a.differs_little(b)
    assert not a.hides(b)
    assert Point(1, 4.0, 3.0, 7.5, 0.5).hides(Point(1, 7.0, 6.9, 7.1, 0.0))
    unsteady = Point(1, 4.0, 3.8, 4.2, OFF)
    assert unsteady.hides(Point(1, 5.9, 5.8, 6.0, 0.0))
    assert not unsteady.hides(Point(1, 6.2, 6.1, 6.3, 0.0))


def test_a_value_with_an_interval_of_its_own_has_its_bar():
    cells = {"energy_j_per_token": 4.0, "energy_j_per_token_low": 3.0, "energy_j_per_token_high": 6.0}
    assert bar(cells, "energy_j_per_token") == (0.75, 1.5)


@pytest.mark.parametrize(("others", "who"), [({}, "vLLM"), ({2048: 9.0}, "Transformer on vLLM")])
def test_a_baseline_whose_environment_failed_is_named_with_the_log(others, who):
    why = "its environment failed to install (log: .venv-vllm.log)"
    gone = synthetic.lost(Case(*SLOW, "1.3b", "forward", 16, 2048), "skipped", why)
    made = synthetic.of_suite("fig15-forward", *forward({2048: 4.0}), gone, *forward(others, "mamba", "vllm"))
    drawn = figures(made.table, made.catalogue)
    assert f"No {who}: {why}." in headline(made.table, made.catalogue, drawn)
    assert f"; no {who}: {why}" in drawn[0].caption


def test_each_line_of_a_figure_is_read_once(monkeypatch):
    read, reading = [], View._read
    monkeypatch.setattr(View, "_read", lambda view, line: read.append(line.name) or reading(view, line))
    made = synthetic.of_suite("fig15-forward", *forward({2048: 4.0}), *forward({2048: 5.0}, *SLOW))
    view = View(made.table, made.catalogue, figures(made.table, made.catalogue)[0])
    assert len(standings(view)) == 1
    assert sorted(read) == sorted(line.name for line in view.figure.lines)
