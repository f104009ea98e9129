"""`quick` samples for two minutes at most, even if no case settles."""

from itertools import cycle

import pytest

from bench.plan import plan
from bench.request import RunRequest
from harness.measure.timer import take_samples
from harness.quality import quality_of
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.record import Record
from tests.harness.fake_clock import FakeClock

CASE = Case("ttt-linear", "torch", "tiny", "forward", 1, 16)


def sampled_s(policy: Policy) -> float:
    clock = FakeClock(cycle([50.0, 100.0]))
    timing = take_samples(clock, policy)
    assert timing.stop == "budget"
    record = Record(CASE, "ok", samples_ms=timing.samples_ms, throttled=timing.throttled, stop="budget")
    assert quality_of([record]).disturbed or quality_of([record]).few_samples
    return clock.now()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_quick_samples_for_two_minutes_at_most(device, rounds):
    work = plan(RunRequest(suites=("quick",), device=device, rounds=rounds))
    assert work.total * rounds * sampled_s(work.policy) <= 120


def test_another_suite_has_its_budget_also_beside_quick():
    asked = RunRequest(suites=("fig15-forward", "quick"), device="cuda", systems=("transformer/torch",))
    assert plan(asked).policy.budget_s == 1.0
