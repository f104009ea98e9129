"""One task of several that share a run: claim its jobs one after another, and run those that nobody else has."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.schema import claims
from harness.schema.claims import Claims, Holder
from harness.schema.run import Run
from harness.schema.run_file import Job, Pair, RunError
from harness.workers import slurm
from harness.workers.process import HERE, Launch, Place
from harness.workers.scheduler import Event, Options, run_jobs


def run_task(
    run: Run, launches: Mapping[Pair, Launch], holder: Holder, options: Options, place: Place = HERE
) -> list[str]:
    """Run the free ones of `options.jobs` in their order, and those of an earlier start of this task; return names.

    holder: this task, with the id of its array. RunError where another array has the run, another start of this task
    has taken its job over, or the place's GPU is gone.
    """
    jobs = run.jobs if options.jobs is None else options.jobs
    done = []
    with run.held(holder):
        _join(run, holder)
        claimed = Claims(run.folder, holder.array)
        for job in jobs:
            if claimed.take(job.name, holder):
                watched = partial(_show_own, run, claimed, job, holder, options.on_event)
                run_jobs(run, launches, replace(options, jobs=[job], on_event=watched), [place], holder)
                claimed.finish(job.name)
                done.append(job.name)
        if all(claimed.is_finished(job.name) for job in jobs):
            claims.forget_submission(run.folder)
    return done


def _join(run: Run, holder: Holder) -> None:
    """See that the run is this array's, also where its script was submitted by hand."""
    known = claims.submission(run.folder)
    if known is None or known.array != holder.array:
        refuse_submitted(run.folder)
        claims.note_submission(run.folder, holder.array)


def refuse_submitted(folder: Path) -> None:
    """RunError where a Slurm job that has not ended has the run in `folder`."""
    known = claims.submission(folder)
    if known is None:
        return
    try:
        alive = slurm.task_states(known.array)
    except slurm.SlurmError as error:
        raise RunError(
            f"{folder}: was submitted as Slurm job {known.array} from {known.host}, and whether that has ended cannot "
            f"be said here ({error}); if it has, remove {folder / 'claims'}"
        ) from None
    if alive:
        raise RunError(
            f"{folder}: another run is writing to it, Slurm job {known.array} submitted from {known.host}; "
            f"follow it (ttt-bench status {folder}), or cancel it (--cancel)"
        )


def _show_own(
    run: Run, claimed: Claims, job: Job, holder: Holder, on_event: Callable[[Event], object], event: Event
) -> None:
    """Show an event, or end the task before a case where another start of it has taken its job over."""
    now = claimed.holder(job.name)
    if event.kind == "start" and now != holder:
        raise RunError(f"{run.folder}: the job {job.name} was taken over by {now or 'a later run'}")
    on_event(event)
