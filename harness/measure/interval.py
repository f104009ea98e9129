"""Compute a nonparametric confidence interval of the median of one process's samples."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median

CONFIDENCE = 0.95
FEWEST = 6  # minimum number of samples whose range is a 95% interval of the median
BLOCK = 5  # minimum samples of a block; its median follows a drift and ignores an outlier
# Lag-1 autocorrelations up to this many standard errors are insignificant: of signs about the median, of ranks.
_CORRELATED, _RANKS_CORRELATED = 1.3, 0.5


def median_interval(samples: Sequence[float]) -> tuple[float, float, float]:
    """Return (median, low, high): the samples' median and its 95% confidence interval.

    samples: times of one process, in order of measurement. Raises ValueError if there are none.
    low and high are the r-th smallest and the r-th largest of the n samples.
    Independent samples: r is the largest rank with 1 - 2 P(binomial(n, 1/2) <= r - 1) >= 0.95, and at least 1.
    Correlated samples: let m < n be the effective sample size. r is computed for m, then scaled by (n + 1) / (m + 1).
    If m < 6 and n < 30, r is 1.
    If m < 6 and n >= 30, low and high are instead the smallest and the largest median of blocks of successive samples.
    Each block has at least five samples.
    """
    ordered = sorted(samples)
    count, effective = len(samples), effective_sample_size(samples)
    if effective < FEWEST and count >= FEWEST * BLOCK:
        blocks = count // BLOCK
        drift = [median(samples[at * count // blocks : (at + 1) * count // blocks]) for at in range(blocks)]
        return median(ordered), min(drift), max(drift)
    # The r-th of `effective` samples lies on average at the quantile r / (effective + 1).
    rank = 1 if effective < FEWEST else _lower_rank(effective) * (count + 1) // (effective + 1)
    return median(ordered), ordered[rank - 1], ordered[-rank]


def effective_sample_size(samples: Sequence[float]) -> int:
    """Return the effective sample size: how many independent samples are as informative."""
    # Signs show slow or irregular drift; ranks also show correlation in a few dozen samples.
    return min(_effective_size_by_signs(samples), _effective_size_by_ranks(samples))


def _effective_size_by_ranks(samples: Sequence[float]) -> int:
    count, ordered = len(samples), sorted(samples)
    # Equal samples share a rank.
    rank = [bisect_left(ordered, each) + bisect_right(ordered, each) - count for each in samples]
    spread = sum(each * each for each in rank)
    if count < FEWEST or not spread:
        return count
    found = sum(first * second for first, second in pairwise(rank)) / spread
    if found <= _RANKS_CORRELATED / math.sqrt(count):
        return count
    # Corrected for bias: Marriott and Pope, Biometrika 41, 1954.
    correlation = min(0.99, found + (1 + 4 * found) / count)
    return max(1, round(count * (1 - correlation) / (1 + correlation)))


def _effective_size_by_signs(samples: Sequence[float]) -> int:
    count, middle = len(samples), median(samples)
    above = int("0" + "".join("1" if sample > middle else "0" for sample in samples), 2)
    share = above.bit_count() / count
    variance = share * (1 - share)
    if count < 2 * FEWEST or not variance:
        return count

    def correlation(lag: int) -> float:
        together = (above & (above >> lag)).bit_count() / (count - lag)
        return (together - share * share) / variance

    if correlation(1) <= _CORRELATED / math.sqrt(count):
        return count
    total = 0.0  # over pairs of lags while a pair's sum is positive: Geyer, Statistical Science 7, 1992
    for lag in range(1, count // 2, 2):
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0:
            break
        total += pair
    length = 1 + 2 * total
    length *= 1 + 2 * length / count  # correlations about an estimated mean are too small
    return max(1, min(count, int(count / length)))


@lru_cache(maxsize=4096)
def _lower_rank(count: int) -> int:
    """Return the rank r that `median_interval` defines for `count` independent samples."""
    below, rank = 0.0, 0
    while True:
        # In logarithms: 2**-count underflows beyond a thousand samples.
        log_choose = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        below += math.exp(log_choose - count * math.log(2))
        if 1 - 2 * below < CONFIDENCE:
            return max(rank, 1)
        rank += 1
