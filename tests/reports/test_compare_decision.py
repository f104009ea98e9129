"""`decide` is right for given log ratios, and rarely wrong in simulations with the noise of real runs."""

import math

import numpy as np
import pytest
from scipy import stats

from reports.compare.decision import BAR, decide
from tests.reports.simulate_ab import RECORDED_QUANTILES, Noise, single_case, stored_false_alarms, study, two_runs

QUIET = [[0.001, -0.002, 0.0, 0.001, -0.001]] * 9


def shifted(by):
    return [math.log1p(by) + 0.002 * (-1) ** at for at in range(5)]


def test_outcomes_are_in_the_order_of_the_cases():
    found = decide([shifted(0.05), *QUIET, shifted(-0.05), [0.04, -0.03, 0.05, -0.02, 0.0]])
    assert [each.outcome for each in found] == ["slower", *["same"] * 9, "faster", "undecided"]
    assert found[0].ratio == pytest.approx(1.05, abs=0.002)
    assert found[0].low < found[0].ratio < found[0].high
    assert [each.regressed for each in found] == [True, *[False] * 11]


def test_a_single_case_has_students_t_test():
    values = [0.031, 0.012, 0.025, 0.018]
    expected = stats.ttest_1samp(values, math.log1p(BAR), alternative="greater").pvalue
    assert (decide([values])[0].outcome == "slower") == (expected < 0.05)
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    found = decide([values])[0]
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((interval.low, interval.high))


def test_the_variance_of_a_case_is_shrunk_towards_the_median():
    lucky = [0.021, 0.0211, 0.0209]
    noisy = [[0.04, -0.04, 0.02], [-0.03, 0.03, 0.0], [0.05, -0.02, -0.03], [0.02, 0.02, -0.05]]
    assert decide([lucky])[0].outcome == "slower"
    assert decide([lucky, *noisy])[0].outcome == "undecided"


@pytest.mark.parametrize(("factor", "own"), [(6.94, False), (6.95, True)])
def test_a_significantly_larger_variance_is_not_shrunk(factor, own):
    """5 cases, 3 rounds: a variance above 6.944 (5% point of F(2, 4)) times the median variance is not shrunk."""
    deviations = [0.01] * 4 + [0.01 * math.sqrt(factor)]
    found = decide([[-each, 0.0, each] for each in deviations])[-1]
    variance, shared = 1e-4 * factor, (4 * 1e-4 + 2 * 1e-4 * factor) / 6
    expected = stats.t.isf(0.025, 2 if own else 6) * math.sqrt((variance if own else shared) / 3)
    assert math.log(found.high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("by", "outcome"),
    [(0.0099, "same"), (0.0101, "slower"), (-0.0101, "faster"), (-0.0097, "same")],
)
def test_rounds_without_noise_are_slower_or_faster_beyond_1_percent(by, outcome):
    assert decide([[math.log1p(by)] * 3])[0].outcome == outcome


@pytest.mark.parametrize(("noise", "outcome"), [(0.00313, "same"), (0.00314, "undecided")])
def test_two_rounds_are_the_same_if_their_error_excludes_2_percent(noise, outcome):
    """Log ratios ±`noise` are "same" if noise < log(1.02) / 6.314 = 0.003136; 6.314 is the 95% point of t(1)."""
    assert decide([[noise, -noise]])[0].outcome == outcome


def test_one_of_many_cases_needs_a_smaller_p_value():
    values = [math.log1p(0.03) + each for each in (-0.012, 0.012, -0.008, 0.008, 0.0)]
    assert decide([values])[0].outcome == "slower"
    noise = [[0.01 * (-1) ** (at + each) for at in range(5)] for each in range(200)]
    assert decide([values, *noise])[0].outcome == "undecided"


def test_fail_on_changes_regressions_but_not_outcomes():
    at_1, at_10 = decide([shifted(0.05)])[0], decide([shifted(0.05)], fail_on=0.1)[0]
    assert (at_1.outcome, at_1.regressed) == ("slower", True)
    assert (at_10.outcome, at_10.regressed) == ("slower", False)


def test_equal_rounds_and_missing_rounds():
    found = decide([[0.0] * 5, [math.log(1.2)] * 5, [math.log(1.2)] * 2])
    assert [each.outcome for each in found] == ["same", "slower", "slower"]
    assert decide([]) == []


def test_the_simulated_noise_is_at_least_97_percent_of_the_recorded():
    apart = np.abs(two_runs(500))
    assert all(np.quantile(apart, share) >= 0.97 * recorded for share, recorded in RECORDED_QUANTILES.items())


def test_two_stored_runs_of_the_same_commit_rarely_differ_by_over_5_percent():
    assert stored_false_alarms(1000) <= 0.05


@pytest.mark.parametrize(
    ("seed", "suites", "noise", "most"),
    [(11, 600, Noise(), 0.03), (12, 300, Noise(factor=3), 0.05), (12, 300, Noise(disturbed=0.05), 0.05)],
)
def test_a_suite_of_the_same_commit_rarely_has_a_false_alarm(seed, suites, noise, most):
    assert study(seed, suites, noise=noise).false_alarms <= most


def test_noisy_cases_among_quiet_ones_have_their_own_variance():
    random, suites, false_alarms, covered = np.random.default_rng(5), 400, 0, 0
    for _ in range(suites):
        noisy = random.normal(0, 0.06, (2, 3))
        found = decide([*random.normal(0, 0.002, (16, 3)).tolist(), *noisy.tolist()])
        false_alarms += any(each.outcome in ("slower", "faster") for each in found)
        covered += sum(each.low <= 1 <= each.high for each in found[16:])
    assert false_alarms / suites <= 0.05
    assert covered / (2 * suites) >= 0.92


def test_a_slowdown_of_5_percent_is_found_and_never_called_the_same():
    system, single = study(13, 100, slowdown=0.05), study(14, 300, slowdown=0.05, slowed=single_case)
    assert (system.found >= 0.95, system.same <= 0.01, single.found >= 0.9) == (True, True, True)
