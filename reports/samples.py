"""The latency that the records of a case's processes say."""

from collections.abc import Sequence
from statistics import median

from harness.schema.record import Record


def at_once(record: Record) -> int:
    """How many sequences ran at once: the batch, or as many as fitted, but for a forward's: each leaves when read."""
    case = record.case
    held = record.metrics.get("sequences_at_once") if case.phase != "forward" else None
    return min(case.batch, int(held or case.batch))


def latency_ms(measured: Sequence[Record]) -> float:
    """The median of the medians of a case's processes, each with samples."""
    return median(median(record.samples_ms) for record in measured)
