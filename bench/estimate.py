"""Estimate a run's duration from earlier runs of the same cases on like devices."""

from collections.abc import Mapping, Sequence
from functools import cache
from heapq import heapreplace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness.schema.record import RecordError
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned

RESULTS = Path(__file__).resolve().parent.parent / "reports" / "results"

Durations = Mapping[str, float]  # seconds by case key


class _Timed(NamedTuple):
    key: str
    seconds: float
    skipped: bool
    device: str | None
    device_kind: str | None


class JobTime(NamedTuple):
    """Seconds of a job's cases that an earlier run has timed, and the number of its other cases."""

    seconds: float
    untimed: int = 0


def past_durations(machine: Mapping[str, Any] | None, out: Path) -> Durations:
    """Return the seconds that a case takes, by key: the median over earlier runs.

    Earlier runs are in `out`, in folders in and next to it, and published. machine: a snapshot; None counts any GPU.
    A case takes the first that exists: runs on the GPU or CPU model, runs on the kind of device, or skips.
    """
    device, kind = (machine.get("device"), machine.get("device_kind")) if machine else (None, "cuda")
    here: dict[str, list[float]] = {}
    elsewhere: dict[str, list[float]] = {}
    skipped: dict[str, list[float]] = {}
    out = out.resolve()
    own = {out, *_runs_in(out.parent), *_runs_in(out)}
    for case in chain(*map(_timed, sorted(own)), *map(_published, sorted(_runs_in(RESULTS) - own))):
        if case.device_kind == kind:
            same = device and case.device == device
            (skipped if case.skipped else here if same else elsewhere).setdefault(case.key, []).append(case.seconds)
    return {key: median(seconds) for key, seconds in (skipped | elsewhere | here).items()}


def _runs_in(folder: Path) -> set[Path]:
    return {path.parent for path in folder.glob("*/run.json")} if folder.is_dir() else set()


def _timed(folder: Path) -> tuple[_Timed, ...]:
    try:
        run = Run.open(folder) if Run.exists(folder) else None
        records = run.records() if run and run.mode == "measure" else []
    except RecordError:
        return ()
    return tuple(
        _Timed(
            record.case.key,
            record.wall_s,
            record.status == "skipped",
            record.environment.get("device"),
            record.environment.get("device_kind"),
        )
        for record in records
        if record.wall_s and record.status in ("ok", "incorrect", "oom", "timeout", "skipped")
    )


_published = cache(_timed)  # published runs do not change, and take a second to read


def job_time(cases: Sequence[Planned], past: Durations) -> JobTime:
    """Return the estimated time of a job's cases."""
    known = [past[planned.case.key] for planned in cases if planned.case.key in past]
    return JobTime(sum(known), len(cases) - len(known))


def longest_first(jobs: Sequence[Job], past: Durations) -> list[Job]:
    """Sort jobs by estimated time, the longest first; an untimed case counts as the median."""
    typical = median(past.values()) if past else 1.0

    def seconds(job: Job) -> float:
        time = job_time(job.cases, past)
        return time.seconds + typical * time.untimed

    return sorted(jobs, key=seconds, reverse=True)


def side_by_side(seconds_of_jobs: Sequence[float], slots: int) -> float:
    """Return the seconds until all jobs end on `slots` slots; the longest job starts first."""
    busy = [0.0] * slots
    for seconds in sorted(seconds_of_jobs, reverse=True):
        heapreplace(busy, busy[0] + seconds)
    return max(busy)


def in_words(seconds: float | None) -> str:
    """Format a duration as `40 s`, `3 min` or `2.0 h`; None as `not known`."""
    if seconds is None:
        return "not known"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
