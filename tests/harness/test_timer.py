import itertools
from collections.abc import Iterator
from statistics import median

import pytest
from fake_clock import FakeClock
from simulate_coverage import coverage

from harness.measure.interval import median_interval
from harness.measure.timer import (
    BATCHES,
    least_warmup_s,
    stop_reason,
    take_engine_samples,
    take_samples,
    warm_up,
    warm_up_engine,
)
from harness.schema.policy import Policy


def noisy(spread: float) -> Iterator[float]:
    return itertools.cycle([10 * (1 + spread), 10 * (1 - spread)])


@pytest.mark.parametrize(
    ("samples", "policy", "stop", "count"),
    [
        (noisy(0.004), Policy(), "interval", 50),
        (itertools.repeat(1.0), Policy(budget_s=10.0), "interval", 500),  # 20 samples lie in one swing of clocks
        (itertools.repeat(1.0), Policy(budget_s=0.2), "interval", 200),
        (noisy(0.05), Policy(budget_s=100.0), "count", 1000),  # the median is not precise
        (noisy(0.05), Policy(budget_s=0.2), "budget", 100),  # a lasting disturbance: five budgets
        (itertools.repeat(1e6), Policy(min_samples=6, budget_s=1), "budget", 6),  # `min_samples`
    ],
)
def test_each_criterion_ends_sampling(samples: Iterator[float], policy: Policy, stop: str, count: int) -> None:
    timing = take_samples(FakeClock(samples), policy)
    assert (timing.stop, len(timing.samples_ms)) == (stop, count)


def test_a_disturbance_extends_the_budget_by_at_most_a_minute() -> None:
    clock = FakeClock(itertools.cycle([1000.0, 1500.0]))
    assert take_samples(clock, Policy(budget_s=100.0)).stop == "budget"
    assert clock.now() < 165


def test_a_passing_disturbance_extends_the_budget() -> None:
    clock = FakeClock(itertools.chain([14.0, 15.0, 12.0], itertools.repeat(10.0)))
    timing = take_samples(clock, Policy(budget_s=0.1, min_samples=6))
    assert (timing.stop, median(timing.samples_ms)) == ("interval", 10.0)
    assert 0.2 < clock.now() < 0.5


def test_an_outlier_of_six_long_samples_adds_three() -> None:
    """The 95% interval of six samples includes their outlier, so sampling continues past the budget to nine samples."""
    clock = FakeClock(itertools.chain([2782.0], itertools.cycle([2222.0, 2232.0, 2230.0])))
    timing = take_samples(clock, Policy(budget_s=1.0, min_samples=6))
    assert (timing.stop, len(timing.samples_ms)) == ("budget", 9)
    assert median_interval(timing.samples_ms)[2] < 2240
    for budget_s, count in ((1.0, 9), (0.0, 6)):  # also if they never agree; a budget of 0 is not extended
        clock = FakeClock(itertools.cycle([2000.0, 3000.0]))
        assert len(take_samples(clock, Policy(budget_s=budget_s, min_samples=6)).samples_ms) == count


@pytest.mark.parametrize(("longer", "stop"), [(10.09, "interval"), (10.11, "")])
def test_the_longer_side_of_the_interval_is_within_1_percent_of_the_median(longer: float, stop: str) -> None:
    samples = [10.0, longer, 10.0] * 6 + [10.0, longer]
    assert median_interval(samples) == (10.0, 10.0, longer)
    assert stop_reason(samples, 1.0, Policy()) == stop


def test_few_samples_that_agree_are_not_enough() -> None:
    policy = Policy(min_samples=6)
    assert stop_reason([1.0] * 19, 1.0, policy) == ""
    assert stop_reason([1.0] * 20, 1.0, policy) == "interval"


def test_the_stopping_criterion_keeps_the_confidence() -> None:
    assert coverage(20, 0, series=100) >= 0.93
    assert coverage(150, 0.5, series=100) >= 0.85


def test_the_precision_of_the_policy_counts() -> None:
    samples = [10.0, 10.3] * 10
    assert stop_reason(samples, 1.0, Policy(precision=0.05)) == "interval"
    assert stop_reason(samples, 1.0, Policy(precision=0.01)) == ""


def test_warm_up_ends_without_steadiness() -> None:
    for policy, most_ms in ((Policy(), 5000), (Policy(budget_s=0.1), 1200)):
        samples = warm_up(FakeClock(itertools.cycle([10.0] * 5 + [11.0] * 5)), policy)
        assert sum(samples) == pytest.approx(most_ms, abs=11)


@pytest.mark.parametrize(("sample_ms", "runs"), [(7.0, 286), (700.0, 3), (1500.0, 2), (2300.0, 1), (60_000.0, 1)])
def test_work_of_seconds_settles_in_a_few_runs(sample_ms: float, runs: int) -> None:
    clock = FakeClock(itertools.repeat(sample_ms), settles_s=2.0)
    assert len(warm_up(clock, Policy(), lambda: True)) == runs


def test_work_of_seconds_goes_on_while_it_drifts() -> None:
    clock = FakeClock([1500.0, 1300.0, 1290.0], settles_s=2.0)
    assert len(warm_up(clock, Policy(), lambda: True)) == 3
    clock = FakeClock([330.0] * 2 + [300.0] * 4, settles_s=1.2)  # windows of two samples
    assert len(warm_up(clock, Policy(), lambda: True)) == 6


def test_an_unthrottled_load_only_wakes_the_device() -> None:
    clock = FakeClock(itertools.repeat(5.0), settles_s=2.0, wakes_s=0.5)
    assert len(warm_up(clock, Policy())) == 100
    assert len(warm_up(FakeClock(itertools.repeat(5.0)), Policy())) == 40


def test_a_load_throttled_once_settles() -> None:
    clock = FakeClock(itertools.repeat(5.0), settles_s=2.0, wakes_s=0.5)
    throttled = (at == 20 for at in itertools.count())
    assert len(warm_up(clock, Policy(), lambda: next(throttled))) == 400


def test_windows_that_differ_by_2_percent_are_steady() -> None:
    assert len(warm_up(FakeClock([100.0] * 5 + [98.05] * 4 + [120.0]), Policy())) == 10  # an outlier does not count
    assert len(warm_up(FakeClock([100.0] * 5 + [97.95] * 10), Policy())) == 13


def test_a_long_call_in_prepare_replaces_the_warm_up() -> None:
    clock = FakeClock(itertools.repeat(2300.0), settles_s=2.0)
    clock.loaded_s = 2.3
    assert warm_up(clock, Policy()) == []


def test_a_short_budget_limits_the_warm_up() -> None:
    clock = FakeClock([], settles_s=2.0, wakes_s=0.5)
    assert least_warmup_s(clock, Policy(budget_s=0.1), limited=True) == pytest.approx(1.2)
    assert least_warmup_s(clock, Policy(budget_s=0.1), limited=False) == 0.5
    assert least_warmup_s(clock, Policy(budget_s=1 / 6), limited=True) == 2.0  # the budget still allows it
    assert least_warmup_s(clock, Policy(budget_s=0.0), limited=True) == 0.0


def test_throttling_is_queried_after_each_sample() -> None:
    clock, policy = FakeClock(itertools.repeat(1.0)), Policy(min_samples=3, budget_s=0.0)
    assert take_samples(clock, policy, lambda: clock.now() > 0.0015).throttled == [False, True, True]


def test_a_throttled_engine_batch_is_flagged_throughout() -> None:
    flags = iter([True, False])
    timing = take_engine_samples([[1.0, 2.0, 3.0], [4.0, 5.0]], Policy(), lambda: next(flags))
    assert timing.throttled == [True, True, True, False, False]
    assert (timing.samples_ms, timing.stop) == ([1.0, 2.0, 3.0, 4.0, 5.0], "count")
    with pytest.raises(ValueError, match="no samples"):
        take_engine_samples([], Policy())


def test_stopping_criteria_apply_to_engines() -> None:
    endless = take_engine_samples(itertools.repeat([25.0]), Policy())
    assert stop_reason([1.0] * 30, 1.0, Policy(), due=False) == ""
    assert (endless.stop, len(endless.samples_ms)) == ("interval", 20)
    spent = take_engine_samples(([each] for each in itertools.count(1.0)), Policy(budget_s=0, min_samples=3))
    assert (spent.stop, len(spent.samples_ms)) == ("budget", 3)
    counted = take_engine_samples(([each] for each in itertools.count(1.0)), Policy(budget_s=1000.0))
    assert (counted.stop, len(counted.samples_ms)) == ("count", 1000)


def test_the_interval_needs_several_engine_batches() -> None:
    batches = itertools.cycle([[10.0] * 32, [10.05] * 32])
    timing = take_engine_samples(batches, Policy())
    assert (timing.stop, len(timing.samples_ms)) == ("interval", BATCHES * 32)


@pytest.mark.parametrize(
    ("batch_s", "units", "batches"), [(0.4, 1, 3), (3.0, 1, 3), (4.9, 1, 3), (5.0, 1, 2), (30.0, 1, 2), (0.4, 2, 2)]
)
def test_the_budget_of_an_engine_counts_timed_steps(
    batch_s: float, units: int, batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = itertools.count(100.0, batch_s)
    monkeypatch.setattr("harness.measure.timer.time.monotonic", lambda: next(moment))
    steps = [100.0, 101.0, 99.0, 100.0]
    timing = take_engine_samples(itertools.repeat(steps), Policy(budget_s=1.0), units=units)
    assert (timing.stop, len(timing.samples_ms)) == ("budget", batches * len(steps))


def test_an_engine_warms_up_by_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = itertools.count(100.0, 0.5)  # each batch takes 0.5 s
    monkeypatch.setattr("harness.measure.timer.time.monotonic", lambda: next(moment))
    clock = FakeClock(itertools.repeat(1.0))
    clock.wakes_s, clock.settles_s = 0.5, 2.0
    for throttled, policy, dropped in (
        (False, Policy(), 1),
        (True, Policy(), 4),
        (True, Policy(budget_s=1 / 12), 2),
        (False, Policy(budget_s=0.0), 1),
    ):
        batches = iter([[500.0 + number] for number in range(100)])
        flags = itertools.chain([throttled], itertools.repeat(False))  # throttled at the first batch alone
        assert warm_up_engine(batches, policy, clock, flags.__next__) == []
        assert next(batches) == [500.0 + dropped]


@pytest.mark.parametrize(("batch_s", "steps_ms", "kept"), [(1.5, 500.0, True), (1.5, 502.0, False), (0.5, 4.0, False)])
def test_an_engines_batch_counts_if_its_prompts_warmed_up(
    batch_s: float, steps_ms: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = itertools.count(100.0, batch_s)
    monkeypatch.setattr("harness.measure.timer.time.monotonic", lambda: next(moment))
    clock = FakeClock(itertools.repeat(1.0))
    clock.wakes_s = 1.0
    steps = [steps_ms / 16] * 4  # ms per step; a sample has four steps
    assert warm_up_engine(itertools.repeat(steps), Policy(), clock, units=4) == [steps] * kept


def test_before_sample_runs_outside_of_the_samples() -> None:
    clock, times = FakeClock(itertools.repeat(1.0)), []
    policy = Policy(min_samples=3, budget_s=0.0)
    take_samples(clock, policy, before_sample=lambda: times.append(clock.now()))
    assert times == pytest.approx([0.0, 0.001, 0.002])


def test_sampling_lasts_as_long_as_the_energy_counter_needs() -> None:
    clock = FakeClock(itertools.repeat(2.0))
    warm_up(clock, Policy())  # the time before the samples does not count
    timing = take_samples(clock, Policy(), least_s=1.0)
    assert (timing.stop, len(timing.samples_ms)) == ("interval", 500)


def test_a_throttled_load_skips_the_warm_up_only_after_settling() -> None:
    clock = FakeClock(itertools.repeat(10.0), settles_s=2.0, wakes_s=0.5)
    clock.loaded_s = 0.6
    assert len(warm_up(clock, Policy(), lambda: True)) == 200
