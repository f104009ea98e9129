"""Skip a case that cannot run: its checkpoint is unknown, or a smaller case did not fit."""

from collections.abc import Iterable, Sequence

from bench.models.case_model import checkpoint_missing
from harness.schema.case import Case
from harness.schema.record import Record
from harness.schema.run_file import Planned


def skip_reason(planned: Planned, earlier: Sequence[Record]) -> str:
    """Return why the scheduler skips a case, or "" to run it. earlier: the job's records so far."""
    return checkpoint_missing(planned.case) or beyond_memory(planned, earlier)


def beyond_memory(planned: Planned, earlier: Iterable[Record]) -> str:
    """Return why a case of a growing series is skipped: a smaller one did not fit. "" to run it."""
    if not planned.grows:
        return ""
    for record in earlier:
        axis = _smaller_axis(record.case, planned.case)
        if not axis:
            continue
        size = f"{axis} {getattr(record.case, axis)}"
        if record.status in ("oom", "timeout"):
            return f"{size} {'did not fit' if record.status == 'oom' else 'exceeded the time limit'}"
        at_once = record.metrics.get("sequences_at_once") or record.case.batch
        if axis == "batch" and at_once < record.case.batch:
            return f"only {at_once} sequences of {size} fitted at once, and were measured"
    return ""


def _smaller_axis(smaller: Case, case: Case) -> str:
    """Return the only axis in which `smaller` is below `case`, or ""; the timing is allowed to differ."""
    for axis in ("batch", "context"):
        if getattr(smaller, axis) < getattr(case, axis):
            others = (name for name in Case.__dataclass_fields__ if name not in (axis, "timing"))
            return axis if all(getattr(smaller, name) == getattr(case, name) for name in others) else ""
    return ""
