"""One task of several that share a run: claim its jobs one after another, and run those that nobody else has."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harness.schema import claims
from harness.schema.claims import Claims, Holder
from harness.schema.run import Run
from harness.schema.run_file import Job, RunError
from harness.workers import slurm
from harness.workers.attempt import Retry, nothing
from harness.workers.process import HERE, Launch, Limits, Place, PlaceLost
from harness.workers.runner import Event, Session, SkipReason, session


def run_task(
    run: Run,
    launches: Mapping[tuple[str, str], Launch],
    holder: Holder,
    *,
    jobs: Sequence[Job],
    on_event: Callable[[Event], object] = lambda event: None,
    place: Place = HERE,
    limits: Limits | None = None,
    retry: Retry = nothing,
    skip: SkipReason = lambda planned, earlier: "",
) -> list[str]:
    """Run the `jobs` that are free, in their order, and those of an earlier start of this task; their names.

    holder: this task, with the id of its array. limits, retry, skip: as of `runner.session`. RunError where another
    array has the run, another start of this task has taken its job over, or the place's GPU is gone.
    """
    done = []
    with run.held(holder):
        _join(run, holder)
        claimed = Claims(run.folder, holder.array)
        for job in jobs:
            if claimed.take(job.name, holder):
                watched = _Watched(run, claimed, job, holder, on_event)
                with session(
                    run, launches, jobs=[job], limits=limits, retry=retry, on_event=watched, skip=skip, task=holder
                ) as work:
                    _run_job(work, job, place)
                    work.refuse_loss(job)
                claimed.finish(job.name)
                done.append(job.name)
        if all(claimed.is_finished(job.name) for job in jobs):
            claims.forget_submission(run.folder)
    return done


def _run_job(work: Session, job: Job, place: Place) -> None:
    try:
        work.run_job(job, place=place)
    except PlaceLost:
        raise RunError(
            f"{work.run.folder}: {place.name} is gone; what is left of {job.name} waits for --resume, other jobs for "
            "other tasks"
        ) from None


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


class _Watched:
    """Shows events, and ends the task before a case where another start of it has taken its job over."""

    def __init__(
        self, run: Run, claimed: Claims, job: Job, holder: Holder, on_event: Callable[[Event], object]
    ) -> None:
        self._run, self._claimed, self._job, self._holder, self._on_event = run, claimed, job, holder, on_event

    def __call__(self, event: Event) -> None:
        now = self._claimed.holder(self._job.name)
        if event.kind == "start" and now != self._holder:
            raise RunError(f"{self._run.folder}: the job {self._job.name} was taken over by {now or 'a later run'}")
        self._on_event(event)
