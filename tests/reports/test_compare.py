"""Comparing two runs gives the right pairs of cases, outcomes, intervals and notes."""

import math
import random
from contextlib import nullcontext
from dataclasses import replace
from statistics import stdev

import pytest
from scipy import stats
from small_runs import a_case, a_run, on_cpu, on_gpu, timed, two, without

from bench.commands import compare as commands
from harness.schema.record import Record, RecordError
from harness.schema.run import Run
from harness.schema.run_file import PastRequest
from reports.compare import views
from reports.compare.comparison import compare
from reports.compare.side import run_side

AB = ("ab", "HEAD~1", "HEAD")
HOT = on_gpu(throttled=("sw_thermal_slowdown",))
LOADED = on_gpu(cpu={"others_share": 0.5, "idle_share": 0.01})
OTHER_GPU = on_gpu(unit="another")


def rounds(case, middles):
    return [timed(case, ms, repeat=repeat) for repeat, ms in enumerate(middles)]


def test_cases_are_paired_by_key_and_sorted_from_the_largest_difference(tmp_path):
    cases = [a_case(context) for context in (64, 128, 256)]
    of_b = [timed(case, ms) for case, ms in zip(cases, (10, 8, 12), strict=True)]
    found = compare(*two(tmp_path, [timed(case, 10) for case in cases], of_b))
    assert [row.label.split()[6] for row in found.rows] == ["T=128", "T=256", "T=64"]
    assert [row.result.ratio for row in found.rows] == pytest.approx([0.8, 1.2, 1.0])
    assert [row.result.outcome for row in found.rows] == ["faster", "slower", "same within noise"]
    assert all(row.result.low < row.result.ratio < row.result.high for row in found.rows)
    assert found.counts == {"slower": 1, "faster": 1, "same within noise": 1}


@pytest.mark.parametrize(
    ("by", "outcome"), [(1.04, "same within noise"), (1.06, "slower"), (0.96, "same within noise"), (0.9, "faster")]
)
def test_two_stored_runs_differ_only_beyond_5_percent(tmp_path, by, outcome):
    found = compare(*two(tmp_path, [timed(a_case(), 10)], [timed(a_case(), 10 * by)]), fail_on=0.01)
    assert found.rows[0].result.outcome == outcome
    assert found.regressions == (outcome == "slower")


@pytest.mark.parametrize(
    ("by", "outcome"), [(1.3, "same within noise"), (0.78, "same within noise"), (0.7, "faster"), (1.4, "slower")]
)
def test_two_stored_runs_on_a_cpu_differ_only_beyond_30_percent(tmp_path, by, outcome):
    found = compare(*two(tmp_path, [timed(a_case(), 10, on_cpu())], [timed(a_case(), 10 * by, on_cpu())]))
    assert (found.rows[0].result.outcome, found.fail_on) == (outcome, 0.05)


def test_a_stored_regression_must_exceed_fail_on(tmp_path):
    runs = two(tmp_path, [timed(a_case(), 10)], [timed(a_case(), 12)])
    assert compare(*runs, fail_on=0.1).regressions == 1
    assert compare(*runs, fail_on=0.3).regressions == 0


def test_repeats_count_with_the_median_of_their_medians(tmp_path):
    runs = two(tmp_path, rounds(a_case(), [10, 10, 19]), rounds(a_case(), [10, 11, 10]), repeats=3)
    row = compare(*runs).rows[0]
    assert (row.a_us, row.b_us, row.result.ratio) == pytest.approx((10_000, 10_000, 1))
    assert row.result.outcome == "unreliable"
    assert row.result.high > 1.3  # the interval of three processes that disagree is wide


@pytest.mark.parametrize("sides", [("equal", "spread"), ("spread", "equal")])
def test_the_interval_of_stored_repeats_is_students(tmp_path, sides):
    middles = {"equal": [math.sqrt(105)] * 2, "spread": [10, 10.5]}
    result = compare(*two(tmp_path, *(rounds(a_case(), middles[each]) for each in sides), repeats=2)).rows[0].result
    half = stats.t.isf(0.025, 1) * stdev(map(math.log, middles["spread"])) / math.sqrt(2)
    expected = math.hypot(half, 0.02)
    assert (math.log(result.low), math.log(result.high)) == pytest.approx((-expected, expected))


@pytest.mark.parametrize(
    ("samples", "ratio"),
    [  # the interval goes from the second sample to the eighth
        ([9.9, 9.95, 10, 10, 10, 10.2, 10.5, 11, 12], 1.1),
        ([8, 9, 9.5, 9.8, 10, 10, 10, 10.05, 10.1], 10 / 9),
    ],
)
def test_a_stored_interval_is_symmetric_with_the_longer_half_of_the_process(tmp_path, samples, ratio):
    skewed, even = timed(a_case(), 10), timed(a_case(), 10)
    skewed.samples_ms[:] = samples
    random.Random(1).shuffle(skewed.samples_ms)
    even.samples_ms[:] = [10.0] * 9
    result = compare(*two(tmp_path, [skewed], [even])).rows[0].result
    assert math.log(result.high) == pytest.approx(math.hypot(math.log(ratio), 0.02))


def test_a_regression_of_ab_must_exceed_fail_on(tmp_path):
    of_b = rounds(a_case(), [10.51, 10.5, 10.49])
    runs = two(tmp_path, rounds(a_case(), [10.01, 10, 9.99]), of_b, repeats=3, arguments=AB)
    found = compare(*runs, fail_on=0.1)
    outcome = found.rows[0].result.outcome
    assert (found.interleaved, found.fail_on, outcome, found.regressions) == (True, 0.1, "slower", 0)
    assert compare(*runs).regressions == 1


def test_the_outcomes_of_ab_come_from_its_rounds(tmp_path):
    quiet = [a_case(context) for context in (128, 256, 512, 1024)]
    steady = [10, 10.05, 9.95, 10.02, 10]
    of_a = rounds(a_case(), steady) + [record for case in quiet for record in rounds(case, steady)]
    of_b = rounds(a_case(), [ms * 1.03 for ms in steady]) + [
        record for case in quiet for record in rounds(case, steady)
    ]
    found = compare(*two(tmp_path, of_a, of_b, repeats=5, arguments=AB))
    assert found.interleaved
    assert [row.result.outcome for row in found.rows] == ["slower", *["same"] * 4]
    assert found.regressions == 1


def test_rounds_are_paired_by_their_number(tmp_path):
    of_a, of_b = rounds(a_case(), [10, 20, 40, 80]), rounds(a_case(), [10, 20, 40, 80])[1:]
    [row] = compare(*two(tmp_path, of_a, of_b, repeats=4, arguments=AB)).rows
    assert row.result.ratio == pytest.approx(1)


def test_steps_with_different_numbers_of_sequences_are_compared_per_token(tmp_path):
    runs = two(tmp_path, [timed(a_case(), 100, tokens=338)], [timed(a_case(), 99.4, tokens=320)])
    row = compare(*runs).rows[0]
    assert (row.a_us, row.b_us) == pytest.approx((100_000 / 338, 99_400 / 320))
    assert row.result.ratio == pytest.approx(row.b_us / row.a_us)
    assert row.notes == ("concurrent sequences differ: tokens per sample are 338 in A, 320 in B",)


@pytest.mark.parametrize(("arguments", "outcome", "half"), [(("run",), "same within noise", 0.02), (AB, "same", 0.0)])
def test_rounds_and_repeats_are_compared_per_token(tmp_path, arguments, outcome, half):
    sides = (
        [timed(a_case(), 10 * each, repeat=at, tokens=each) for at, each in enumerate(tokens)]
        for tokens in ((20, 25, 30), (30, 20, 25))
    )
    [row] = compare(*two(tmp_path, *sides, repeats=3, arguments=arguments)).rows
    assert (row.result.outcome, row.notes) == (outcome, ())
    assert (math.log(row.result.low), math.log(row.result.high)) == pytest.approx((-half, half))


def test_only_the_sides_of_one_ab_are_interleaved(tmp_path):
    steady = [10, 10.05, 9.95]
    a = a_run(tmp_path / "a", *rounds(a_case(), steady), repeats=3, arguments=AB, at="2026-11-21T04:50:00+00:00")
    b = a_run(tmp_path / "b", *rounds(a_case(), steady), repeats=3, arguments=AB, at="2026-11-22T04:50:00+00:00")
    c = a_run(tmp_path / "c", *rounds(a_case(), steady), repeats=3, arguments=("run",))
    one = a_run(tmp_path / "one", *rounds(a_case(), [10]), repeats=1, arguments=AB, at="2026-11-21T04:50:00+00:00")
    assert not compare(a, b).interleaved
    assert not compare(c, c).interleaved
    assert not compare(one, a).interleaved


def test_a_run_without_all_repeats_is_unfinished(tmp_path):
    whole, partial = rounds(a_case(), [10, 10, 10]), rounds(a_case(), [10])
    found = compare(*two(tmp_path, whole, partial, repeats=3))
    assert "unfinished" not in found.a.measured
    assert found.b.measured.endswith("unfinished: 2 records missing (3 planned per case)")
    assert "B has 1 of 3 rounds" in found.rows[0].notes


def test_a_case_with_one_round_is_undecided_and_has_a_note(tmp_path):
    lost = [timed(a_case(), 10), Record(a_case(), "killed", "SIGKILL", repeat=1, environment=on_gpu())]
    found = compare(*two(tmp_path, rounds(a_case(), [10, 10]), lost, repeats=2, arguments=AB))
    assert found.rows[0].result.outcome == "undecided"
    assert found.rows[0].notes == ("B has 1 of 2 rounds",)
    for environment, outcome in ((on_gpu(), "same"), (on_cpu(), "another GPU")):
        of_b = [timed(a_case(), 10, environment, repeat=at) for at in range(2)]
        runs = two(tmp_path / outcome, rounds(a_case(), [10, 10]), of_b, repeats=2, arguments=AB)
        assert compare(*runs).counts == {outcome: 1}


@pytest.mark.parametrize(
    ("a", "b", "outcome"),
    [
        (on_gpu("H100"), on_gpu("A100"), "another GPU"),
        (on_gpu(), on_cpu(), "another GPU"),
        (on_cpu(), on_cpu("EPYC"), "another CPU"),
        (on_cpu(), on_cpu(cores=2), "another CPU"),
        (on_gpu(), {}, "another GPU"),
    ],
)
def test_cases_on_another_device_have_a_ratio_only(tmp_path, a, b, outcome):
    found = compare(*two(tmp_path, [timed(a_case(), 10, a)], [timed(a_case(), 20, b or {"device": ""})]))
    assert found.counts == {outcome: 1}
    assert (found.rows[0].result.ratio, found.regressions) == (pytest.approx(2), 0)


def test_differences_list_their_systems_unless_all_have_them(tmp_path):
    cases = [a_case(), a_case(system="transformer")]
    newer = on_gpu(commit="b" * 40, dirty=True, software={"python": "3.12", "torch": "2.12"})
    of_b = [timed(cases[0], 10, on_gpu(commit="b" * 40, dirty=True)), timed(cases[1], 10, newer)]
    found = compare(*two(tmp_path, [timed(case, 10) for case in cases], of_b))
    assert [each.sentence for each in found.differences] == [
        "commit aaaaaaaaaa → bbbbbbbbbb with uncommitted changes",
        "torch 2.11 → 2.12 (transformer · torch)",
    ]
    assert views.text(found).index("differs: commit") < views.text(found).index("outcome")


@pytest.mark.parametrize(
    ("commit", "shown"), [("release-2026-build", "release-2026-build"), ("0123456789ab", "0123456789")]
)
def test_a_commit_is_shortened_unless_it_is_a_name(tmp_path, commit, shown):
    at = PastRequest("2026-11-21T04:50:00+00:00", ("run",), commit, True, {"device": "H100"})
    found = []
    for records in ([timed(a_case(), 10, on_gpu(commit=commit, dirty=True))], [without(a_case())]):
        run = a_run(tmp_path / str(len(found)), *records)
        side = run_side(Run(run.folder, replace(run.file, requests=(at,))), records)
        found.append((side.commit, side.device))
    assert found == [(f"{shown} with uncommitted changes", "H100")] * 2


def test_differences_cover_all_processes_of_a_case(tmp_path):
    there = on_gpu(commit="b" * 40, unit="another", driver="570")
    del there["software"]
    of_a, of_b, swapped = (
        [timed(a_case(), 10, each, repeat) for repeat, each in enumerate(environments)]
        for environments in ((on_gpu(), on_gpu()), (on_gpu(), there), (there, on_gpu()))
    )
    found = compare(*two(tmp_path, of_a, of_b, repeats=2))
    assert [each.sentence for each in found.differences] == [
        "commit aaaaaaaaaa → aaaaaaaaaa and bbbbbbbbbb",
        "GPU id 12345678 → 12345678 and another",
        "driver 580 → 570 and 580",
        "python 3.12 → 3.12 and not recorded",
        "torch 2.11 → 2.11 and not recorded",
    ]
    assert not compare(*two(tmp_path / "swapped", of_b, swapped, repeats=2)).differences


def test_one_process_of_an_engine_on_another_host_makes_the_case_unreliable(tmp_path):
    case = a_case(timing="engine", batch=4)
    of_b = [timed(case, 11, each, repeat) for repeat, each in enumerate((on_gpu(), OTHER_GPU))]
    [row] = compare(*two(tmp_path, rounds(case, [10, 10]), of_b, repeats=2)).rows
    assert row.result.outcome == "unreliable"
    assert any("another host" in note for note in row.notes)


@pytest.mark.parametrize("kind", ["setting", "variable"])
def test_a_value_that_varies_by_case_is_one_difference(tmp_path, kind):
    cases = [a_case(context) for context in range(1, 9)]
    of_a, of_b = ([timed(case, 10, on_gpu(variables={})) for case in cases] for _ in "ab")
    for record in of_b:
        facts = record.settings if kind == "setting" else record.environment["variables"]
        facts["TRITON_TILE"] = str(record.case.context)
    found = compare(*two(tmp_path, of_a, of_b))
    assert [each.sentence for each in found.differences] == [f"{kind} TRITON_TILE, varying by case"]


def test_variables_that_one_run_did_not_record_are_one_difference(tmp_path):
    variables = {"OMP_NUM_THREADS": "2", "TRITON_TILE": "64"}
    of_b = [timed(a_case(), 10, on_gpu(variables=variables))]
    found = compare(*two(tmp_path, [timed(a_case(), 10)], of_b))
    assert [each.sentence for each in found.differences] == ["environment variables not recorded → recorded"]


def test_planned_cases_of_an_unfinished_run_are_lost(tmp_path):
    cases = [a_case(context) for context in (1, 2, 3)]
    measured, failed = [timed(case, 10) for case in cases[:2]], without(cases[2])
    for name, count in (("a", 3), ("b", 1)):
        run = a_run(tmp_path / name, *measured, failed)
        [path] = (run.folder / "records").iterdir()
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:count]))
    whole, broken = (Run.open(tmp_path / name) for name in "ab")
    found = compare(whole, broken, fail_on=0.05)
    reason = "no record in B, which is unfinished"
    assert [(each.label.split()[6], each.reason, each.outcome) for each in found.missing] == [
        ("T=2", reason, "lost"),
        ("T=3", reason, ""),  # it had no result in A
    ]
    assert found.regressions == 1
    assert found.b.measured == "2026-11-21, unfinished: 2 cases without a record"
    assert [each.outcome for each in compare(broken, whole).missing] == ["gained", ""]


def test_few_samples_and_a_contended_or_throttled_machine_are_unreliable(tmp_path):
    cases = [a_case(context) for context in (1, 2, 3)]
    of_b = [timed(cases[0], 20, samples=5), timed(cases[1], 20, LOADED), timed(cases[2], 20, HOT)]
    found = compare(*two(tmp_path, [timed(case, 10) for case in cases], of_b))
    notes = {row.label.split()[6]: row.notes for row in found.rows}
    assert notes == {
        "T=1": ("B has 5 samples",),
        "T=2": ("contended (CPU use of other programs: 50% in B)",),
        "T=3": ("thermally throttled in B",),
    }
    assert {row.result.outcome for row in found.rows} == {"unreliable"}


@pytest.mark.parametrize(
    ("case", "unit", "outcome"),
    [
        ({"timing": "engine", "batch": 4}, "another", "unreliable"),
        ({"timing": "engine", "batch": 4}, "12345678", "slower"),
        ({"timing": "engine", "batch": 8}, "another", "slower"),
        ({"timing": "graph", "batch": 2}, "another", "slower"),
    ],
)
def test_an_engine_of_few_sequences_is_unreliable_on_another_host(tmp_path, case, unit, outcome):
    case = a_case(**case)
    found = compare(*two(tmp_path, [timed(case, 10)], [timed(case, 11, on_gpu(unit=unit))])).rows[0]
    assert found.result.outcome == outcome
    assert any("another host" in note for note in found.notes) == (outcome == "unreliable")


def test_two_gpus_of_a_model_have_wider_intervals_and_the_order_of_runs_does_not_matter(tmp_path):
    one_gpu = compare(*two(tmp_path, [timed(a_case(), 10)], [timed(a_case(), 10.306)]))
    a, b = two(tmp_path / "other", [timed(a_case(), 10)], [timed(a_case(), 10.306, OTHER_GPU)])
    forward, backward = compare(a, b), compare(b, a)
    assert one_gpu.rows[0].result.low > 1 > forward.rows[0].result.low
    differences = [each.rows[0].relative_difference for each in (forward, backward)]
    assert differences == pytest.approx([0.0306, 0.0306])


@pytest.mark.parametrize(
    ("environments", "note"),
    [
        (
            (LOADED, on_gpu(cpu={"others_share": 0.2, "idle_share": 0.01})),
            "contended (CPU use of other programs: 50% in B)",
        ),
        ((on_gpu(), HOT), "thermally throttled in B"),
    ],
)
def test_the_most_disturbed_process_of_a_case_counts(tmp_path, environments, note):
    of_b = [timed(a_case(), 20, environment, repeat) for repeat, environment in enumerate(environments)]
    [row] = compare(*two(tmp_path, rounds(a_case(), [10, 10]), of_b, repeats=2)).rows
    assert (row.notes, row.result.outcome) == ((note,), "unreliable")


@pytest.mark.parametrize("processes", [1, 2])
def test_throttling_of_one_side_has_a_note(tmp_path, processes):
    free, capped = (rounds(a_case(), [10] * processes) for _ in "ab")
    capped[-1].throttled[3] = True
    found = compare(*two(tmp_path, capped, free, repeats=processes))
    assert found.rows[0].notes == ("power-capped or thermally throttled in A only",)
    assert compare(*two(tmp_path / "both", capped, capped, repeats=processes)).rows[0].notes == ()


def test_samples_that_drift_are_unreliable(tmp_path):
    steady = timed(a_case(), 10, samples=32)
    drifting = replace(steady, samples_ms=[12.0] * 8 + [20.0] * (len(steady.samples_ms) - 8))
    [row] = compare(*two(tmp_path, [steady], [drifting])).rows
    assert (row.result.outcome, row.notes) == ("unreliable", ("unsteady in B",))


def test_an_unsteady_ttft_is_unreliable(tmp_path):
    wide = {"time_to_first_token_ms": 9.0, "time_to_first_token_ms_low": 7.0, "time_to_first_token_ms_high": 11.0}
    steady = timed(a_case(phase="request"), 10)
    [row] = compare(*two(tmp_path, [replace(steady, metrics=wide)], [timed(steady.case, 20)])).rows
    assert (row.result.outcome, row.notes) == ("unreliable", ("unsteady in A",))


@pytest.mark.parametrize("arguments", [AB, ("run",)])
def test_a_case_whose_requests_arrive_over_time_is_unreliable(tmp_path, arguments):
    of_a, of_b = (rounds(a_case(phase="request", options=(("rate", 8),)), [10, 10.01]) for _ in "ab")
    [row] = compare(*two(tmp_path, of_a, of_b, repeats=2, arguments=arguments)).rows
    assert (row.result.outcome, row.notes[-1]) == ("unreliable", "its arrivals set its duration")
    with pytest.raises(SystemExit, match="3") if arguments == AB else nullcontext():
        commands._show(tmp_path / "a", tmp_path / "b", None, markdown=False)


def test_runs_without_timing_are_refused(tmp_path):
    a = a_run(tmp_path / "a", timed(a_case(1), 1))
    verified = a_run(tmp_path / "v", Record(a_case(1), "ok", environment=on_gpu()), mode="verify")
    with pytest.raises(RecordError, match="mode 'verify', whose cases have no timing"):
        compare(a, verified)
    for sides in ((a, a_run(tmp_path / "empty1")), (a_run(tmp_path / "empty2"), a)):
        with pytest.raises(RecordError, match=r"empty\d: has no records to compare$"):
            compare(*sides)
