"""Create the run folder of a command, or open the run that it continues."""

from pathlib import Path

from bench.errors import UserError
from bench.plan import Plan
from bench.request import RunRequest
from bench.terminal import note
from harness.measure.environment import git_error
from harness.measure.interval import FEWEST
from harness.quality import flagged
from harness.schema.case import Mode
from harness.schema.record import utc_now
from harness.schema.run import Run
from harness.schema.run_file import PastRequest, RunFile
from harness.workers.scheduler import Retry
from harness.workers.slurm import JOB, refuse_submitted


def resumed(request: RunRequest, out: Path) -> Run | None:
    """Return the run in `out` if it exists and `request.resume` is set, otherwise None.

    Raises RunError if a Slurm job may still write to `out`, or if a new run's `out` is a file or has non-hidden files.
    Raises UserError if `out` has no run and `request.retry` is "failed" or "flagged".
    """
    refuse_submitted(out)
    if request.resume and Run.exists(out):
        return Run.open(out)
    if request.retry != "lost":
        raise UserError(f"{out}: holds no run whose cases --retry could repeat")
    Run.refuse_existing(out)
    return None


def open_run(work: Plan, out: Path, before: Run | None) -> Run:
    """Add plan `work` to the run `before`, or to a new run in `out` if `before` is None; return the run.

    Raises UserError if the plan does not fit `before`, and RunError if another process works on `before`.
    """
    if not work.machine["commit"] and (error := git_error()):
        note(f"no record of this run will name its commit: {error}")
    if before:
        refuse_incompatible(before, work)
        return extended(work, out)
    return Run.create(out, file_of(work, "measure"))


def file_of(work: Plan, mode: Mode) -> RunFile:
    """Return a new run's run.json content. mode: "measure" (`run`, `ab`), "verify" or "profile"."""
    requests = (request_of(work),)
    return RunFile(mode, work.device, work.jobs, work.catalogue, work.policy, work.request.rounds, requests)


def request_of(work: Plan) -> PastRequest:
    """Return the plan's request as run.json stores it, with time, commit and machine."""
    machine, published = work.machine, work.request.published()
    constant = {name: machine.get(name) for name in ("device", "device_kind", "gpu", "cpu", "software")}
    typed = published.model_dump(mode="json", exclude_defaults=True)
    return PastRequest(utc_now(), tuple(published.arguments()), machine["commit"], machine["dirty"], constant, typed)


def extended(work: Plan, out: Path) -> Run:
    """Add the plan to the run in `out`, and delete its Slurm job file; RunError if locked."""
    with Run.open(out).held():
        current = Run.open(out)  # read under the lock: another process may have extended it
        current.extend(work.jobs, work.catalogue, request_of(work))  # its error names the run
        (out / JOB).unlink(missing_ok=True)
    return current


def retry_of(run: Run, retry: str) -> Retry:
    """Return a function that decides whether to measure the finished case of a record again.

    retry: "failed" repeats cases that are not ok. "flagged" repeats cases with a flag of `harness.quality.case_flags`.
    "lost" repeats no finished case.
    The flag `FEW_SAMPLES` alone does not count if the case's planned min_samples is below FEWEST.
    """
    few = {each.case.key for job in run.jobs for each in job.cases if each.min_samples < FEWEST}
    doubtful = flagged(run.records(), few) if retry == "flagged" else set()
    return lambda record: record.case.key in doubtful or (retry == "failed" and record.status != "ok")


def refuse_incompatible(current: Run, work: Plan) -> None:
    """Raise UserError if the cases of plan `work` cannot be added to the run `current`.

    `current` must come from `ttt-bench run`, with the same device and, if the request names one, the same --budget.
    """
    if current.file.mode != "measure":
        raise UserError(f"{current.folder}: is a run of mode {current.file.mode!r}, not 'measure'; name another folder")
    if current.file.repeats > 1:
        raise UserError(f"{current.folder}: has rounds of `ttt-bench ab`, which cannot be resumed; name another folder")
    refuse_another_device(current, work)
    own_s, requested_s = current.file.policy.budget_s, work.request.budget_s
    if requested_s is not None and f"{own_s:g}" != f"{requested_s:g}":
        raise UserError(
            f"{current.folder}: samples each case for {own_s:g} s, not {requested_s:g}; "
            f"name another folder or use --budget {own_s:g}"
        )


def refuse_another_device(current: Run, work: Plan) -> None:
    """Raise UserError if the plan's device differs from the run's in kind (CPU or GPU) or name.

    Names are compared only if this machine and the machine of the run's last request have the plan's kind of device.
    """
    if current.jobs and work.device != current.file.device:
        kinds = f"is a run on {current.file.device}, and these cases are for {work.device}"
        raise UserError(f"{current.folder}: {kinds}; name another --out")
    before = current.file.requests[-1].machine if current.file.requests else {}
    here = {before.get("device_kind"), work.machine["device_kind"], work.device}
    if len(here) == 1 and before.get("device") != work.machine["device"]:
        raise UserError(
            f"{current.folder}: is from {before.get('device')}, and this machine has {work.machine['device']}; "
            "name another folder"
        )
