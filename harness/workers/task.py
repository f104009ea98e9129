"""Work of one Slurm task: claim and run one free job after another of a shared run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.schema import claims
from harness.schema.claims import Claims, Holder
from harness.schema.run import Run
from harness.schema.run_file import Job, Pair, RunError
from harness.workers import slurm
from harness.workers.process import DEFAULT_SLOT, GpuSlot, Launch
from harness.workers.scheduler import Event, Options, run_jobs


def run_task(
    run: Run, launches: Mapping[Pair, Launch], holder: Holder, options: Options, slot: GpuSlot = DEFAULT_SLOT
) -> list[str]:
    """Claim and run jobs of `options.jobs` until none is free; return the finished names.

    After a requeue of this task, the job that it claimed before is free too. holder: this process as a Slurm task.
    Raises RunError if another Slurm job holds the run, if the GPU does not answer any more, or if a requeued start of
    this task took over a job.
    """
    jobs = run.jobs if options.jobs is None else options.jobs
    done = []
    with run.held(holder):
        submitted = claims.submission(run.folder)
        if submitted is None or submitted.array != holder.array:  # the user submitted the script
            refuse_submitted(run.folder)
            claims.note_submission(run.folder, holder.array)
        claimed = Claims(run.folder, holder.array)
        for job in jobs:
            if claimed.take(job.name, holder):
                watched = partial(_show_own, run, claimed, job, holder, options.on_event)
                run_jobs(run, launches, replace(options, jobs=[job], on_event=watched), [slot], holder)
                claimed.finish(job.name)
                done.append(job.name)
        if all(claimed.is_finished(job.name) for job in jobs):
            claims.forget_submission(run.folder)
    return done


def refuse_submitted(folder: Path) -> None:
    """Raise RunError if the run was submitted to Slurm and may still be running there."""
    known = claims.submission(folder)
    if known is None:
        return
    try:
        alive = slurm.task_states(known.array)
    except slurm.SlurmError as error:
        raise RunError(
            f"{folder}: was submitted as Slurm job {known.array} from {known.host}, and its state is unknown here "
            f"({error}); if it has ended, remove {folder / 'claims'}"
        ) from None
    if alive:
        raise RunError(
            f"{folder}: another run is writing to it, Slurm job {known.array} submitted from {known.host}; "
            f"follow it (ttt-bench status {folder}), or cancel it (scancel {known.array})"
        )


def _show_own(
    run: Run, claimed: Claims, job: Job, holder: Holder, on_event: Callable[[Event], object], event: Event
) -> None:
    """Report `event`, but raise RunError if another process took the job over."""
    now = claimed.holder(job.name)
    if event.kind == "start" and now != holder:
        raise RunError(f"{run.folder}: the job {job.name} was taken over by {now or 'a later run'}")
    on_event(event)
