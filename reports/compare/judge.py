"""Judge paired rounds of two sides: each case slower, faster, the same, or undecided and how many rounds would decide.

The unit is a fresh process: the samples of one share its memory layout, clocks and temperature, so more of them say
little about the next process. A case's numbers are the logarithms of B's median over A's, one for each round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

BAR = 0.01  # a difference that is shown to be larger than this is slower or faster
SAME = 0.02  # one that is shown to be smaller than this is the same
ALPHA = 0.05
PRIOR_ROUNDS = 4.0  # the weight of all cases' variance beside a case's own
LEAST_ROUNDS, MOST_ROUNDS = 2, 99

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """A case's verdict. ratio: B over A, the geometric mean of its rounds; low, high: its 95% interval.

    regressed: shown to be slower by more than what was asked to fail on. decided_by: rounds that would decide an
    undecided case if they went on like the ones there are; None where more than `MOST_ROUNDS` would be needed.
    """

    verdict: str
    ratio: float
    low: float
    high: float
    rounds: int
    regressed: bool = False
    decided_by: int | None = None


def judge(cases: Sequence[Sequence[float]], fail_on: float = BAR) -> list[Judged]:
    """The verdicts on a suite's cases, each given as log(B's median / A's median) of its rounds, at least
    `LEAST_ROUNDS`.

    One-sided t tests that the slowdown (the speed-up) exceeds `BAR`, the false discoveries among all cases held at
    `ALPHA`; a case that is neither is the same where both tests against `SAME` say so. Raises ValueError for a case of
    fewer than two rounds.
    """
    if not cases:
        return []
    if any(len(case) < LEAST_ROUNDS for case in cases):
        raise ValueError("a case of fewer than two rounds has no variance")
    found = _Estimates.of(cases)
    slower, faster = found.discoveries(BAR), found.discoveries(BAR, sign=-1)
    regressed = found.discoveries(fail_on)
    same = (found.p_values(-SAME) < ALPHA) & (found.p_values(-SAME, sign=-1) < ALPHA)
    verdicts = np.select([slower, faster, same], ["slower", "faster", "same"], "undecided")
    # What one discovery more would have to reach.
    level = ALPHA * (1 + max(slower.sum(), faster.sum())) / len(cases)
    low, high = found.interval()
    return [
        Judged(
            verdict=str(verdict),
            ratio=float(np.exp(found.mean[at])),
            low=float(np.exp(low[at])),
            high=float(np.exp(high[at])),
            rounds=int(found.rounds[at]),
            regressed=bool(regressed[at]),
            decided_by=found.decided_by(at, level) if verdict == "undecided" else None,
        )
        for at, verdict in enumerate(verdicts)
    ]


@dataclass(frozen=True)
class _Estimates:
    """Of each case: mean and standard deviation of its log ratios, how many they are, and degrees of freedom.

    prior: those of them that come from the other cases.
    """

    mean: Numbers
    deviation: Numbers
    rounds: Numbers
    freedom: Numbers
    prior: Numbers

    @classmethod
    def of(cls, cases: Sequence[Sequence[float]]) -> "_Estimates":
        """With each variance shrunk towards the median of all: s² = (w·median(s²) + (k-1)·s²) / (w + k - 1).

        Few cases know little of each other's variance: w is 4, but less than there are cases. It is 0 for a case whose
        own variance is so large that it can hardly be that of the others, such as one that the host bounds.
        """
        rounds = np.array([len(case) for case in cases], float)
        values = np.full((len(cases), int(rounds.max())), np.nan)
        for row, case in zip(values, cases, strict=True):
            row[: len(case)] = case
        variance = np.nanvar(values, axis=1, ddof=1)
        shared, typical = min(PRIOR_ROUNDS, len(cases) - 1.0), np.median(variance)
        apart = variance > typical * stats.f.isf(ALPHA, rounds - 1, max(shared, 1.0))
        prior = np.where(apart, 0.0, shared)
        freedom = prior + rounds - 1
        shrunk = (prior * typical + (rounds - 1) * variance) / freedom
        return cls(np.nanmean(values, axis=1), np.sqrt(shrunk), rounds, freedom, prior)

    def p_values(self, bar: float, sign: int = 1) -> Numbers:
        """Of the test that the slowdown (sign -1: the speed-up) exceeds `bar`, or is less than a negative bar."""
        if bar < 0:
            return self._tail(np.log1p(-bar) - sign * self.mean)
        return self._tail(sign * self.mean - np.log1p(bar))

    def discoveries(self, bar: float, sign: int = 1) -> NDArray[np.bool_]:
        """The cases whose slowdown (speed-up) exceeds `bar`, at most `ALPHA` of them falsely."""
        return stats.false_discovery_control(self.p_values(bar, sign)) <= ALPHA

    def interval(self) -> tuple[Numbers, Numbers]:
        """The 95% interval of each mean."""
        half = stats.t.isf(0.025, self.freedom) * self.deviation / np.sqrt(self.rounds)
        return self.mean - half, self.mean + half

    def decided_by(self, at: int, level: float) -> int | None:
        """The least number of rounds at which a case as it is now would be slower, faster or the same."""
        size, deviation = abs(self.mean[at]), self.deviation[at]
        rounds = np.arange(self.rounds[at] + 1, MOST_ROUNDS + 1)
        error = deviation / np.sqrt(rounds)
        freedom = tuple(self.prior[at] + rounds - 1)
        differs = size - np.log1p(BAR) >= _limits(level, freedom) * error
        alike = np.log1p(SAME) - size >= _limits(ALPHA, freedom) * error
        enough = np.flatnonzero(differs | alike)
        return int(rounds[enough[0]]) if enough.size else None

    def _tail(self, excess: Numbers) -> Numbers:
        error = self.deviation / np.sqrt(self.rounds)
        with np.errstate(divide="ignore", invalid="ignore"):  # rounds that agree exactly have no error
            statistic = np.where(error > 0, excess / error, np.where(excess > 0, np.inf, -np.inf))
        return stats.t.sf(statistic, self.freedom)


@lru_cache(maxsize=1024)
def _limits(level: float, freedom: tuple[float, ...]) -> Numbers:
    return stats.t.isf(level, np.array(freedom))
