"""How long a run will take, from what earlier runs of the same cases took on the same device or kind of device."""

from collections.abc import Mapping, Sequence
from heapq import heapreplace
from pathlib import Path
from statistics import median
from typing import Any

from harness.record import RecordError
from harness.run import Job, Run

RESULTS = Path(__file__).resolve().parent.parent / "reports" / "results"

Durations = Mapping[str, float]  # seconds, by the key of a case


def past_durations(machine: Mapping[str, Any] | None, out: Path) -> Durations:
    """Seconds that each case took in the runs beside and in `out` and in the published ones.

    machine: on its device, and for a case that never ran there, on others of its kind; None for those on any GPU.
    """
    device, kind = (machine.get("device"), machine.get("device_kind")) if machine else (None, "cuda")
    here: dict[str, list[float]] = {}
    elsewhere: dict[str, list[float]] = {}
    bases = [base for base in (out.parent, out, RESULTS) if base.is_dir()]
    folders = {path.parent for base in bases for path in base.glob("*/run.json")}
    for folder in sorted({*folders, out}):
        try:
            records = Run.open(folder).records() if Run.exists(folder) else []
        except RecordError:
            continue
        for record in records:
            if not record.wall_s or record.status not in ("ok", "gate", "oom", "timeout"):
                continue
            if device and record.environment.get("device") == device:
                here.setdefault(record.case.key, []).append(record.wall_s)
            elif record.environment.get("device_kind") == kind:
                elsewhere.setdefault(record.case.key, []).append(record.wall_s)
    return {key: median(seconds) for key, seconds in (elsewhere | here).items()}


def job_seconds(job: Job, repeats: int, past: Durations) -> float | None:
    """Seconds of all cases of a job; None where no case of it was ever run. Unknown ones take as long as the known."""
    known = [past[planned.case.key] for planned in job.cases if planned.case.key in past]
    if not known:
        return None
    return repeats * (sum(known) + (len(job.cases) - len(known)) * median(known))


def longest_first(jobs: Sequence[Job], repeats: int, past: Durations) -> list[Job]:
    """The jobs by how long they will take; where none of a job's cases was ever run, by the number of its cases."""
    typical = median(past.values()) if past else 1.0

    def seconds(job: Job) -> float:
        known = job_seconds(job, repeats, past)
        return known if known is not None else repeats * typical * len(job.cases)

    return sorted(jobs, key=seconds, reverse=True)


def side_by_side(jobs: Sequence[float], places: int) -> float:
    """Seconds until the last of jobs has ended, the longest first, each on the first of `places` that is free."""
    busy = [0.0] * places
    for seconds in sorted(jobs, reverse=True):
        heapreplace(busy, busy[0] + seconds)
    return max(busy)


def in_words(seconds: float | None) -> str:
    """`3 min`, `40 s`, or that it is not known."""
    if seconds is None:
        return "not known"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
