"""Estimate a run's duration from earlier runs of the same cases on the same kind of device."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

from harness.quality import by_case
from harness.schema.case import Case
from harness.schema.record import Record, RecordError
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned

RESULTS = Path(__file__).resolve().parent.parent / "reports" / "results"

Durations = Mapping[Case, float]  # seconds of each case


def past_durations(machine: Mapping[str, Any] | None, out: Path) -> Durations:
    """Return each case's median seconds in earlier runs on the same kind of device.

    Reads the runs in `out`, its subfolders and sibling folders. Cases not measured there come from published runs.
    machine: a snapshot of the machine; None stands for a machine with a GPU.
    """
    kind = machine["device_kind"] if machine else "cuda"
    out = out.resolve()
    own = {out, *_runs_in(out.parent), *_runs_in(out)}
    return _medians(map(_published_records, _runs_in(RESULTS) - own), kind) | _medians(map(_timed_records, own), kind)


def _runs_in(folder: Path) -> set[Path]:
    return {path.parent for path in folder.glob("*/run.json")} if folder.is_dir() else set()


def _timed_records(folder: Path) -> list[Record]:
    try:
        run = Run.open(folder)
        records = run.records() if run.file.mode == "measure" else []
    except RecordError:
        return []
    return [each for each in records if each.wall_s and each.status in ("ok", "incorrect", "oom", "timeout")]


_published_records = cache(_timed_records)  # published runs do not change


def _medians(runs: Iterable[list[Record]], kind: str) -> dict[Case, float]:
    cases = by_case(record for record in chain(*runs) if record.environment.get("device_kind") == kind)
    return {records[0].case: median(record.wall_s for record in records) for records in cases.values()}


def job_seconds(cases: Sequence[Planned], past: Durations) -> float:
    """Estimate a job's seconds; cases not in `past` count as the mean of the job's there or, without any, of all."""
    alike = [seconds for case, seconds in past.items() if case.system_backend == cases[0].case.system_backend]
    typical = fmean(alike or past.values() or [0.0])  # the median would hide the starts of engines
    return sum(past.get(planned.case, typical) for planned in cases)


def longest_first(jobs: Sequence[Job], past: Durations) -> list[Job]:
    """Sort jobs, longest first, by estimated time or, if `past` is empty, number of cases."""
    return sorted(jobs, key=lambda job: (job_seconds(job.cases, past), len(job.cases)), reverse=True)


def in_words(seconds: float) -> str:
    """Format a duration as `40 s`, `3 min` or `2.0 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def on_one_device(seconds: float) -> str:
    """Format `seconds` like `3 min on one device, plus the start of the workers`."""
    return f"{in_words(seconds)} on one device, plus the start of the workers"
