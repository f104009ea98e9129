"""`ttt-bench verify`: run the correctness checks without timing."""

import sys
import tempfile
from pathlib import Path

from bench.commands.measure import summary
from bench.plan import plan
from bench.request import RunRequest
from bench.run_folder import file_of
from bench.terminal import note
from harness.measure.measured_case import NO_REFERENCE
from harness.schema.reason import counted
from harness.schema.record import Record
from harness.schema.run import Run
from harness.workers.progress import Progress
from harness.workers.scheduler import Options, run_jobs


def verify(request: RunRequest) -> None:
    """Check the outputs of the request's cases, and print a line per case.

    Exit status 1 if a case is incorrect, fails or has no reference, or if none is ok.
    """
    work = plan(request)
    work.refuse_elsewhere()
    note(*work.notes)
    with tempfile.TemporaryDirectory() as folder:
        # run.json names this machine's GPU, so a worker that sees none cannot pass for one that does.
        current = Run.create(Path(folder) / "run", file_of(work, "verify"))
        with Progress("verify") as progress:
            options = Options(limits=request.limits, on_event=progress, skip=work.skip)
            records = run_jobs(current, work.launches, options)
    for record in records:
        unchecked = (record.check or {}).get("unchecked", "")
        words = "; ".join(filter(None, (_checks(record), unchecked)))
        print(f"{record.status:<7} {record.case.label}{': ' + words if words else ''}")
    print(f"{counted(len(records), 'case')}: {summary(records)}" if records else "no cases")
    if any(record.status not in ("ok", "skipped") for record in records):
        sys.exit(1)
    if unknown := sum(record.reason == NO_REFERENCE for record in records):
        sys.exit(f"ttt-bench: {counted(unknown, 'case')} not verified: {NO_REFERENCE}")
    if not any(record.status == "ok" for record in records):
        sys.exit("ttt-bench: nothing was verified: every case was skipped, each for the reason in its line")


def _checks(record: Record) -> str:
    """Describe the failed checks, or count the passed ones; without checks, return the record's reason."""
    checks = (record.check or {}).get("checks", [])
    failed = [check for check in checks if not check["passed"]]
    if failed:
        words = [f"{each['name']} {_distance(each['value'])} (limit {_distance(each['limit'])})" for each in failed]
        return f"{len(failed)} of {counted(len(checks), 'check')} failed: {', '.join(words)}"
    return f"{counted(len(checks), 'check')} passed" if checks and record.status == "ok" else record.reason


def _distance(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.2g}"
