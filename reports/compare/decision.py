"""Decide from paired rounds whether each case is slower, faster or the same in run B.

A round measures a case once per run, each time in a fresh process. Samples of one process share memory layout, clocks
and temperature, so a round counts as one observation: log(B's median / A's median).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

BAR = 0.01  # a case with a significantly larger difference is slower or faster
SAME = 0.02  # a case with a significantly smaller difference is the same
ALPHA = 0.05  # false discovery rate for slower and faster; significance level for the same
PRIOR_ROUNDS = 4.0  # the weight of the median variance of all cases, in rounds
LEAST_ROUNDS, MOST_ROUNDS = 2, 99

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class CaseResult:
    """A case's outcome, such as "slower", and the ratio of its time per token in B to that in A.

    ratio: from `decide`, the geometric mean of the rounds' ratios; otherwise, B's median / A's median.
    low, high: the ends of the ratio's 95% interval.
    regressed: whether the slowdown counts as a regression (`reports.compare.comparison.compared`).
    """

    outcome: str
    ratio: float
    low: float
    high: float
    regressed: bool = False


def decide(cases: Sequence[Sequence[float]], fail_on: float = BAR) -> list[CaseResult]:
    """Return the outcome of each case in the order of `cases`.

    cases: for each case, log(B's median / A's median) of each round; at least two rounds.
    fail_on: the slowdown (0.01 for 1%) beyond which a case counts as regressed.
    "slower", "faster": a one-sided t test shows a change beyond `BAR` at false discovery rate `ALPHA` over all cases.
    "same": otherwise, two t tests at level `ALPHA` show a change within `SAME`. "undecided": none of these.
    """
    if not cases:
        return []
    found = _Estimates.of(cases)
    slower, faster = found.discoveries(BAR), found.discoveries(BAR, sign=-1)
    regressed = found.discoveries(fail_on)
    same = np.all([found.p_values(np.log1p(SAME) - sign * found.mean) < ALPHA for sign in (1, -1)], axis=0)
    outcomes = np.select([slower, faster, same], ["slower", "faster", "same"], "undecided")
    ratios = (np.exp(each).tolist() for each in (found.mean, *found.interval()))
    columns = zip(outcomes.tolist(), *ratios, regressed.tolist(), strict=True)
    return [CaseResult(*values) for values in columns]


@dataclass(frozen=True)
class _Estimates:
    """Statistics of the cases' log ratios; each array has one element per case.

    deviation: the standard deviation of one round's log ratio. rounds: the number of rounds.
    freedom: the degrees of freedom of `deviation`.
    """

    mean: Numbers
    deviation: Numbers
    rounds: Numbers
    freedom: Numbers

    @classmethod
    def of(cls, cases: Sequence[Sequence[float]]) -> "_Estimates":
        """Estimate means and variances; shrink variances, except high outliers, towards the median."""
        rounds = np.array([len(case) for case in cases], float)
        variance = np.array([np.var(case, ddof=1) for case in cases])
        weight, typical = min(PRIOR_ROUNDS, len(cases) - 1.0), np.median(variance)
        # A significantly larger variance, such as that of a host-bound case, is not shrunk.
        is_outlier = variance > typical * stats.f.isf(ALPHA, rounds - 1, max(weight, 1.0))
        prior = np.where(is_outlier, 0.0, weight)
        freedom = prior + rounds - 1
        shrunk = (prior * typical + (rounds - 1) * variance) / freedom
        return cls(np.array([np.mean(case) for case in cases]), np.sqrt(shrunk), rounds, freedom)

    def discoveries(self, bar: float, sign: int = 1) -> NDArray[np.bool_]:
        """Return which cases are slower (sign=-1: faster) by more than `bar`, at FDR `ALPHA`."""
        return stats.false_discovery_control(self.p_values(sign * self.mean - np.log1p(bar))) <= ALPHA

    def interval(self) -> tuple[Numbers, Numbers]:
        half = stats.t.isf(0.025, self.freedom) * self.deviation / np.sqrt(self.rounds)
        return self.mean - half, self.mean + half

    def p_values(self, excess: Numbers) -> Numbers:
        """Return p-values of one-sided t tests for excess > 0. excess: means minus a limit."""
        error = self.deviation / np.sqrt(self.rounds)
        with np.errstate(divide="ignore", invalid="ignore"):  # rounds that agree exactly have no error
            statistic = np.where(error > 0, excess / error, np.where(excess > 0, np.inf, -np.inf))
        return stats.t.sf(statistic, self.freedom)
