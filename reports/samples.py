"""The records of each case, and the latency that those of its processes say."""

from collections.abc import Iterable, Sequence
from statistics import median, quantiles

from harness.measure.interval import FEWEST
from harness.schema.record import Record

# How far the samples at the beginning of a case may be from those at its end; beyond, something changed between them.
DRIFT = 0.05


def by_case(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each case by its key, one a process, in the order in which they come."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.case.key, []).append(record)
    return found


def timed(records: Iterable[Record]) -> list[Record]:
    """Those with samples."""
    return [record for record in records if record.samples_ms]


def at_once(record: Record) -> int:
    """How many sequences ran at once: the batch, or as many as fitted, but for a forward's: each leaves when read."""
    case = record.case
    held = record.metrics.get("sequences_at_once") if case.phase != "forward" else None
    return min(case.batch, int(held or case.batch))


def quartiles_apart(samples: Sequence[float]) -> float:
    """How far the quartiles of the samples are apart, over their median; 0 for fewer than six."""
    if len(samples) < FEWEST or not (middle := median(samples)):
        return 0.0
    first, _, third = quantiles(samples, method="inclusive")
    return (third - first) / middle


def ends_apart(samples: Sequence[float]) -> float:
    """How far the median of the first quarter, six samples at least, is from that of the last, over that.

    0 for fewer than twelve samples, and where the two overlap, as noise would have it: of ten samples and more the
    middle halves, of fewer all. Of steady Gaussian noise of 5% it is above 5% in 1.6% of cases of 40 samples, and in at
    most 0.4% of cases of fewer, or of more than 60.
    """
    if len(samples) < 2 * FEWEST:
        return 0.0
    count = max(FEWEST, len(samples) // 4)
    (low, first, high), (floor, last, top) = map(_middle, (samples[:count], samples[-count:]))
    return abs(first / last - 1) if last and (low > top or high < floor) else 0.0


def _middle(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median between the quartiles, or of fewer than ten samples between the ends."""
    if len(samples) < 10:
        return min(samples), median(samples), max(samples)
    low, middle, high = quantiles(samples, method="inclusive")
    return low, middle, high


def latency_ms(measured: Sequence[Record]) -> float:
    """The median of the medians of a case's processes, each with samples."""
    return median(median(record.samples_ms) for record in measured)
