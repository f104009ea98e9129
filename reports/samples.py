"""The records of each case, and the latency that those of its processes say."""

from collections.abc import Iterable, Sequence
from statistics import median

from harness.record import Record


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


def latency_ms(measured: Sequence[Record]) -> float:
    """The median of the medians of a case's processes, each with samples."""
    return median(median(record.samples_ms) for record in measured)
