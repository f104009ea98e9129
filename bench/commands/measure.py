"""`ttt-bench run`: plan, run the jobs, summarize."""

import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from bench import estimate
from bench.cases import with_keys
from bench.catalogue.systems import ADAPTERS
from bench.errors import CANNOT_IMPORT, INTERRUPTED
from bench.plan import plan
from bench.request import RunRequest
from bench.run_folder import open_run, refuse_incompatible, resumed, retry_of
from bench.terminal import note, print_rows
from harness.schema.reason import counted
from harness.schema.record import Record
from harness.workers.machine_load import is_loaded
from harness.workers.pool import slots_of
from harness.workers.progress import Progress
from harness.workers.scheduler import Options, run_jobs, unfinished


def run(request: RunRequest, out: Path) -> None:
    """Measure the request's cases into `out`; exit status 1 if no case has a result."""
    before = resumed(request, out)
    work = plan(request, before)
    work.require_device()
    slots = slots_of(work.gpus(), work.device)
    current = open_run(work, out, before)
    jobs = with_keys(current.jobs, work.keys)
    try:
        note(*work.notes)
        if request.gpus:
            jobs = estimate.longest_first(jobs, estimate.past_durations(work.machine, out))
        with Progress(str(out)) as progress:
            retry = retry_of(current, request.retry)
            options = Options(jobs=jobs, limits=request.limits, retry=retry, skip=work.skip, on_event=progress)
            records = run_jobs(current, work.worker_launches, options, slots)
    except KeyboardInterrupt:
        note(f"interrupted; to continue: {request.resume_command(out)}")
        sys.exit(INTERRUPTED)
    _print_summary([record for record in records if record.case.key in work.keys], request, out)


def _print_summary(records: Sequence[Record], request: RunRequest, out: Path) -> None:
    print(summary(records))
    if loaded := sum(record.status == "ok" and is_loaded(record.environment) for record in records):
        contended = f"{counted(loaded, 'case')} ran on a contended machine and will be flagged"
        note(f"{contended}; to measure flagged cases again: {request.resume_command(out, 'flagged')}")
    note(*missing_packages(records))
    failed = any(record.status not in ("ok", "skipped", "oom") for record in records)
    if failed and request.retry != "failed":
        note(f"to measure failed cases again: {request.resume_command(out, 'failed')}")
    if records and not any(record.status == "ok" for record in records):
        sys.exit(f"ttt-bench: no case has a result; for the reasons: ttt-bench table {shlex.quote(str(out))}")


def dry_run(request: RunRequest, out: Path) -> None:
    """Print the cases left to run, their jobs and estimated time; count the cases already done."""
    earlier = resumed(request, out) if request.resume else None
    work = plan(request, earlier)
    if earlier:
        refuse_incompatible(earlier, work)
    work.gpus(must_exist=False)  # raises UserError for a wrong --gpus
    note(*work.notes)
    past = estimate.past_durations(work.machine if work.has_device else None, out)
    rows, times, total, finished = [], list[float](), 0, 0
    for job in with_keys(earlier.joined(work.jobs) if earlier else work.jobs, work.keys):
        left = unfinished(earlier, job, 0, retry_of(earlier, request.retry)) if earlier else job.cases
        finished += len(job.cases) - len(left)
        if not left:
            continue
        for planned in left:
            print(f"{planned.case.key}  {planned.case.label}")
        times.append(estimate.job_seconds(left, past))
        total += len(left)
        phases = ", ".join(dict.fromkeys(planned.case.phase for planned in left))
        skipped = Counter(filter(None, (work.skip(planned, []) for planned in left)))
        why = "; ".join(f"{count} skipped: {reason}" for reason, count in skipped.most_common(1))
        rows.append((job.name, str(len(left)), phases, estimate.in_words(times[-1]) if any(times) else "unknown", why))
    print_rows(("job", "cases", "phases", "estimated time", "note"), rows)
    line = f"{counted(total, 'case')} in {counted(len(rows), 'job')}"
    line += f": {estimate.on_one_device(sum(times))}" if any(times) else ""
    line += f"; --budget {request.budget_s:g} is not considered" if request.budget_s and any(times) else ""
    print(line + (f"; {counted(finished, 'case')} finished earlier" if finished else ""))
    note("to see which systems can run, call `ttt-bench list` on the machine that will measure")


def summary(records: Sequence[Record]) -> str:
    """Return record counts by status, most frequent first, such as `34 ok, 2 skipped`."""
    counts = Counter(record.status for record in records)
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())


def missing_packages(records: Sequence[Record]) -> list[str]:
    """Return, for each system that lacks a package, a sentence with the install command."""
    skipped = [record for record in records if record.status == "skipped" and CANNOT_IMPORT in record.reason]
    lacking = {record.case.system_backend for record in skipped}
    return [f"{each.label} was skipped; to install it: {each.install}" for each in ADAPTERS if each.label in lacking]
