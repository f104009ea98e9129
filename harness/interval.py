"""Within which interval lies the median, whatever the distribution of the samples?"""

import math
from collections.abc import Sequence
from functools import lru_cache

FEWEST = 6  # samples whose extremes hold the median with 95%


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """(median, low, high): order statistics that hold the true median with at least `confidence`.

    The number of samples below the median is binomial(n, 1/2), so the r-th smallest and r-th largest sample hold it
    with probability 1 - 2 P(binomial <= r - 1). Where no pair reaches `confidence` (fewer than `FEWEST` samples at
    0.95), low and high are the extremes: no interval of that confidence, but the range. Raises ValueError without
    samples, or for a confidence outside of (0, 1).
    """
    if not samples:
        raise ValueError("median of no samples")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence}: must lie between 0 and 1")
    ordered = sorted(samples)
    rank = _lower_rank(len(ordered), confidence)
    return _median(ordered), ordered[rank - 1], ordered[-rank]


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@lru_cache(maxsize=4096)
def _lower_rank(count: int, confidence: float) -> int:
    """The largest rank r, from 1, whose interval still reaches `confidence`; 1 if none does."""
    below, rank = 0.0, 0
    while rank < (count + 1) // 2:
        # In logarithms: 2**-count underflows beyond a thousand samples.
        log_choose = math.lgamma(count + 1) - math.lgamma(rank + 1) - math.lgamma(count - rank + 1)
        below += math.exp(log_choose - count * math.log(2))
        if 1 - 2 * below < confidence:
            break
        rank += 1
    return max(rank, 1)
