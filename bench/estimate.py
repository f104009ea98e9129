"""How long a run will take, from what earlier runs of the same cases took on the same device or kind of device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from heapq import heapreplace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from harness.schema.case import Case
from harness.schema.record import RecordError
from harness.schema.run import Run
from harness.schema.run_file import Job

RESULTS = Path(__file__).resolve().parent.parent / "reports" / "results"

Durations = Mapping[str, float]  # seconds, by the key of a case


def past_durations(machine: Mapping[str, Any] | None, out: Path) -> Durations:
    """Seconds that each case took in the runs beside and in `out` and in the published ones.

    machine: on its device, and for a case that never ran there, on others of its kind; None: on any GPU. A case
    that was skipped wherever it was tried took as long as that.
    """
    device, kind = (machine.get("device"), machine.get("device_kind")) if machine else (None, "cuda")
    here: dict[str, list[float]] = {}
    elsewhere: dict[str, list[float]] = {}
    skipped: dict[str, list[float]] = {}
    out = out.resolve()  # as RESULTS is
    own = {out, *_runs_in(out.parent), *_runs_in(out)}
    timed = [*map(_timed, sorted(own)), *map(_published, sorted(_runs_in(RESULTS) - own))]
    for case in chain.from_iterable(timed):
        if case.skipped:
            if case.device_kind == kind:
                skipped.setdefault(case.key, []).append(case.seconds)
        elif device and case.device == device:
            here.setdefault(case.key, []).append(case.seconds)
        elif case.device_kind == kind:
            elsewhere.setdefault(case.key, []).append(case.seconds)
    return {key: median(seconds) for key, seconds in (skipped | elsewhere | here).items()}


@dataclass(frozen=True)
class _Timed:
    """How long a case took in a run, in `seconds`, and where."""

    key: str
    seconds: float
    skipped: bool
    device: str | None
    device_kind: str | None


def _runs_in(folder: Path) -> set[Path]:
    return {path.parent for path in folder.glob("*/run.json")} if folder.is_dir() else set()


def _timed(folder: Path) -> tuple[_Timed, ...]:
    """The cases that the run in `folder` says the time of; none where there is no run or it cannot be read."""
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


_published = cache(_timed)  # what is published does not change while a process plans, and takes a second to read


@dataclass(frozen=True)
class JobTime:
    """How long a job will take."""

    seconds: float  # of its cases, but of those that nothing is known of
    guessed: int = 0  # cases that were never run, and count as long as those of the same size, phase and scope
    untimed: int = 0  # cases that nothing is known of


def job_time(job: Job, past: Durations) -> JobTime:
    """How long all cases of a job will take, once each."""
    known: dict[tuple[Any, ...], list[float]] = {}
    for case in (planned.case for planned in job.cases):
        if case.key in past:
            known.setdefault(_kind(case), []).append(past[case.key])
    unknown = [planned.case for planned in job.cases if planned.case.key not in past]
    guesses = [median(known[_kind(case)]) for case in unknown if _kind(case) in known]
    seconds = sum(map(sum, known.values())) + sum(guesses)
    return JobTime(seconds, len(guesses), len(unknown) - len(guesses))


def _kind(case: Case) -> tuple[Any, ...]:
    return case.size, case.phase, case.option("scope", "model")


def longest_first(jobs: Sequence[Job], past: Durations) -> list[Job]:
    """The jobs by how long they will take; a case that nothing is known of counts as the median of all."""
    typical = median(past.values()) if past else 1.0

    def seconds(job: Job) -> float:
        time = job_time(job, past)
        return time.seconds + typical * time.untimed

    return sorted(jobs, key=seconds, reverse=True)


def side_by_side(seconds_of_jobs: Sequence[float], places: int) -> float:
    """Seconds until the last of jobs has ended, the longest first, each on the first of `places` that is free."""
    busy = [0.0] * places
    for seconds in sorted(seconds_of_jobs, reverse=True):
        heapreplace(busy, busy[0] + seconds)
    return max(busy)


def in_words(seconds: float | None) -> str:
    """`3 min`, `40 s`, or that it is not known."""
    if seconds is None:
        return "not known"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
