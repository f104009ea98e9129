"""`ttt-bench verify`: check outputs, time nothing."""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.commands.measure import summary
from bench.model_facts import PARAMETERS_OFF
from bench.plan import plan
from bench.request import RunRequest
from bench.run_folder import file_of
from harness.measure.measured_case import NO_REFERENCE
from harness.schema.reason import counted
from harness.schema.record import Record
from harness.schema.run import Run
from harness.workers.progress import Progress
from harness.workers.scheduler import Options, run_jobs


def verify(request: RunRequest) -> None:
    """Check without timing; exit status 1 when a case differs from its reference, has none or fails, or none is ok."""
    work = plan(request)
    work.refuse_elsewhere()
    for said in work.notes_on_systems:
        print(f"ttt-bench: {said}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        # It says what this machine has: a worker that sees no GPU must not verify for one.
        current = Run.create(Path(folder) / "run", file_of(work, "verify"))
        with Progress("verify", work.total) as progress:
            options = Options(limits=request.limits, on_event=progress, skip=work.skip)
            records = run_jobs(current, work.launches, options)
    _print_verdicts(records)
    if any(record.status not in ("ok", "skipped") for record in records):
        sys.exit(1)
    if unknown := sum(record.reason == NO_REFERENCE for record in records):
        sys.exit(f"ttt-bench: {counted(unknown, 'case')} not verified, as {NO_REFERENCE}")
    if not any(record.status == "ok" for record in records):
        sys.exit("ttt-bench: nothing was verified: every case was skipped, each for the reason in its line")


def _print_verdicts(records: Sequence[Record]) -> None:
    """A line for each case, and how many came out how."""
    for record in records:
        unchecked = (record.gate or {}).get("unchecked", "")
        words = "; ".join(filter(None, (_checked(record), unchecked)))
        print(f"{record.status:<7} {record.case.label}{': ' + words if words else ''}")
    print(f"{counted(len(records), 'case')}: {summary(records)}" if records else "no cases")


def _checked(record: Record) -> str:
    """How near a case that passed came to its limits; of another, which checks it missed, or why it has none."""
    checks = (record.gate or {}).get("checks", [])
    missed = [check for check in checks if not check["passed"]]
    if missed:
        words = [f"{each['name']} {_distance(each['value'])} (limit {_distance(each['limit'])})" for each in missed]
        return f"{len(missed)} of {counted(len(checks), 'check')} missed: {', '.join(words)}"
    if not checks or record.status != "ok":
        return record.reason
    said = f"{counted(len(checks), 'check')} passed"
    # Others count, or are for information, or are of the model's size and not of its outputs.
    distances = [each for each in checks if each["limit"] and each["limit"] < 1 and each["name"] != PARAMETERS_OFF]
    if not distances:
        return said
    worst = max(distances, key=lambda each: each["value"] / each["limit"])
    near = f"{worst['name']} {_distance(worst['value'])} of {_distance(worst['limit'])}"
    return f"{said}, {'the worst ' if len(checks) > 1 else ''}{near}"


def _distance(value: float | None) -> str:
    """Two digits of a check's number; a record writes one that is not finite as None."""
    return "not finite" if value is None else f"{value:.2g}"
