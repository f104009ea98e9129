"""`ttt-bench run`: say what will happen, run the jobs, sum up."""

import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import estimate
from bench.catalogue.systems import ADAPTERS
from bench.commands.slurm import asked_of_slurm
from bench.errors import CANNOT_IMPORT, INTERRUPTED
from bench.gpus import gpus_asked
from bench.plan import Plan, plan
from bench.request import RunRequest
from bench.run_folder import open_run, refuse_another_kind, resumed, retry_of
from bench.terminal import print_rows
from harness.schema.reason import counted
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned
from harness.workers.machine_load import is_loaded, warning
from harness.workers.pool import gpu_places, place_here
from harness.workers.process import HERE
from harness.workers.progress import Progress
from harness.workers.scheduler import Options, Todo, run_jobs


def run(request: RunRequest, out: Path) -> None:
    """Measure into the run folder `out`; exit status 1 where nothing came of it."""
    before = resumed(request, out)
    work = plan(request, before)
    work.refuse_elsewhere()
    places = gpu_places(gpus_asked(request.gpus, work.device))
    current = open_run(work, out, before)
    jobs = work.asked_of(current.jobs)
    try:
        for said in filter(None, (*work.notes, warning("cases that they disturb will be marked"))):
            print(f"ttt-bench: {said}", file=sys.stderr)
        if places:
            jobs = estimate.longest_first(jobs, estimate.past_durations(work.machine, out))
        with Progress(str(out), work.total * current.file.repeats) as progress:
            options = Options(
                jobs=jobs,
                limits=request.limits,
                retry=retry_of(current, request.retry),
                skip=work.skip,
                on_event=progress,
            )
            here = place_here() if work.device == "cuda" else HERE
            records = run_jobs(current, work.launches, options, places or [here])
    except KeyboardInterrupt:
        print(f"ttt-bench: interrupted; to continue: {request.to_continue(out)}", file=sys.stderr)
        sys.exit(INTERRUPTED)
    _sum_up([record for record in records if record.case.key in work.keys], request, out)


def _sum_up(records: Sequence[Record], request: RunRequest, out: Path) -> None:
    """Print what came of the cases, and what to do next; exit status 1 where none has a result."""
    print(summary(records))
    if loaded := sum(record.status == "ok" and is_loaded(record.environment) for record in records):
        said = f"{loaded} of them ran beside other programs: their times may be far off, and the page marks them"
        command = request.to_continue(out, "marked")
        print(f"ttt-bench: {said}; to measure again what it marks: {command}", file=sys.stderr)
    for said in missing_packages(records):
        print(f"ttt-bench: {said}", file=sys.stderr)
    failed = any(record.status not in ("ok", "skipped", "oom") for record in records)
    if failed and request.retry != "failed":
        print(f"ttt-bench: to measure again what failed: {request.to_continue(out, 'failed')}", file=sys.stderr)
    if records and not any(record.status == "ok" for record in records):
        sys.exit(f"ttt-bench: no case has a result; why: ttt-bench table {shlex.quote(str(out))}")


def dry_run(request: RunRequest, out: Path) -> None:
    """Print the cases and jobs of a run, what is too large, and how long it will take.

    Of a run that is resumed, without the cases that it has finished, and how many they are.
    """
    tasks = 0
    if request.slurm is not None:
        wanted, request = asked_of_slurm(request)
        tasks = wanted.tasks
    earlier = resumed(request, out) if request.resume else None
    work = plan(request, earlier)
    if earlier:
        refuse_another_kind(earlier, work)
    named = gpus_asked(request.gpus, work.device, here=False)
    every = list(_left_of(work, earlier))
    kept, left = sum(each.kept for each in every), [each for each in every if each.pending]
    for said in work.notes:
        print(f"ttt-bench: {said}", file=sys.stderr)
    past = estimate.past_durations(work.machine if work.here else None, out)
    rows = []
    times = [each.time(past) for each in left]
    for each, time in zip(left, times, strict=True):
        phases = ", ".join(dict.fromkeys(planned.case.phase for planned in each.cases))
        too_large = sum(bool(work.skip(planned, [])) for planned in each.cases)
        note = f"{too_large} larger than this machine's memory" if too_large else ""
        note = work.failed_install(each.job.pair) or note
        rows.append((each.job.name, str(len(each.cases)), phases, estimate.in_words(time.seconds or None), note))
    for planned in (planned for each in left for planned in each.cases):
        print(f"{planned.case.key}  {planned.case.label}")
    print_rows(("job", "cases", "phases", "time", "too large"), rows)
    total = sum(len(each.pending) for each in left)
    on = f" in {tasks} tasks" if tasks else _on(request.gpus, named)
    took = _time_said(times, total, tasks or len(named) or 1)
    said = f"{counted(total, 'case')} in {counted(len(left), 'job')}{on}{': ' if took else ''}{took}"
    print("; ".join([said, *([f"{counted(kept, 'case')} kept from before"] if kept else [])]))
    print("ttt-bench: `ttt-bench list`, on the machine that will measure, says what can run there", file=sys.stderr)


def _time_said(times: Sequence[estimate.JobTime], total: int, at_once: int) -> str:
    """How long jobs of `total` cases will take, so many of them at once."""
    guessed, untimed = sum(time.guessed for time in times), sum(time.untimed for time in times)
    words = []
    if untimed < total:
        words.append(estimate.in_words(estimate.side_by_side([time.seconds for time in times], at_once)))
        words[0] += f" ({guessed} of the cases guessed from others of their job)" if guessed else ""
    words += [f"{counted(untimed, 'case')} that no earlier run has timed"] if untimed else []
    return ", and ".join(words)


def _on(gpus: str | None, named: Sequence[str]) -> str:
    """On which GPUs a run of `--gpus` is planned; of all of a machine that has none, on one."""
    if gpus is None:
        return ""
    if not named:
        return " on one GPU, as none is here to count"
    return f" on {len(named)} GPUs" if len(named) > 1 else f" on GPU {named[0]} alone"


@dataclass(frozen=True)
class _Left:
    """A job, as it will be in the run, and what is left of it: (case, repeat) pairs; kept: how many are finished."""

    job: Job
    pending: Sequence[tuple[Planned, int]]
    kept: int

    @property
    def cases(self) -> list[Planned]:
        """Those that are left of any repeat."""
        return list({planned.case.key: planned for planned, _ in self.pending}.values())

    def time(self, past: estimate.Durations) -> estimate.JobTime:
        """How long the rest will take; what is finished tells how long cases like it do."""
        left = Counter(planned.case.key for planned, _ in self.pending)
        known = [planned for planned in self.job.cases if planned.case.key in past]
        rest = [planned for planned, _ in self.pending if planned.case.key not in past]
        guess = estimate.job_time(replace(self.job, cases=(*known, *rest)), past)
        of_known = sum(past[planned.case.key] * (left[planned.case.key] - 1) for planned in known)
        return replace(guess, seconds=guess.seconds + of_known)


def _left_of(work: Plan, earlier: Run | None) -> Iterator[_Left]:
    """What is left of each job, of the cases that are asked for, as `run` has it."""
    if earlier is None:
        yield from (_Left(job, [(each, 0) for each in job.cases], 0) for job in work.jobs)
        return
    joined = {job.pair: job for job in earlier.joined(work.jobs)}
    again = retry_of(earlier, work.request.retry)
    for job in work.asked_of(joined.values()):
        todo = Todo.of(earlier, job, range(earlier.file.repeats), again)
        yield _Left(joined[job.pair], todo.pending, todo.kept)


def summary(records: Sequence[Record]) -> str:
    """`34 ok, 2 skipped`, the most frequent first."""
    counts = Counter(record.status for record in records)
    return ", ".join(f"{count} {status}" for status, count in counts.most_common())


def missing_packages(records: Sequence[Record]) -> list[str]:
    """How to have each system that was skipped because a package of it cannot be imported."""
    skipped = [record for record in records if record.status == "skipped" and CANNOT_IMPORT in record.reason]
    lacking = {f"{record.case.system}/{record.case.backend}" for record in skipped}
    return [f"{each.label} was skipped; to install it: {each.install}" for each in ADAPTERS if each.label in lacking]
