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
from harness.schema.run import Run
from harness.workers.progress import Progress
from harness.workers.scheduler import Options, run_jobs


def verify(request: RunRequest) -> None:
    """Check the outputs of the request's cases, and print a line per case.

    Exit status 1 if a case is incorrect, fails or has no reference, or if no case is ok.
    """
    work = plan(request)
    work.require_device()
    note(*work.notes)
    with tempfile.TemporaryDirectory() as folder:
        # run.json names this machine's GPU, so the scheduler refuses records of a worker that sees no GPU.
        current = Run.create(Path(folder) / "run", file_of(work, "verify"))
        with Progress("verify") as progress:
            options = Options(limits=request.limits, on_event=progress, skip=work.skip)
            records = run_jobs(current, work.worker_launches, options)
    for record in records:
        checked = record.check or {}
        passed = f"{counted(len(checked['checks']), 'check')} passed" if checked.get("checks") else ""
        found = passed if record.status == "ok" else record.reason
        words = "; ".join(filter(None, (found, checked.get("unchecked", ""))))
        print(f"{record.status:<7} {record.case.label}{': ' + words if words else ''}")
    print(f"{counted(len(records), 'case')}: {summary(records)}" if records else "no cases")
    if any(record.status not in ("ok", "skipped") for record in records):
        sys.exit(1)
    if unknown := sum(record.reason.startswith(NO_REFERENCE) for record in records):
        sys.exit(f"ttt-bench: {counted(unknown, 'case')} not verified: {NO_REFERENCE}")
    if not any(record.status == "ok" for record in records):
        sys.exit("ttt-bench: nothing was verified: every case was skipped, each for the reason in its line")
