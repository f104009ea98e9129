"""Into which run does a command measure: a new one, or one that goes on?"""

import math
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench.errors import UserError
from bench.plan import Plan
from bench.request import RunRequest
from harness.measure.environment import device_id_of, refusal_of_git
from harness.quality import disturbed
from harness.schema.claims import clear
from harness.schema.run import Run
from harness.schema.run_file import Request, RunFile
from harness.workers.scheduler import Retry, not_ok, nothing
from harness.workers.task import refuse_submitted


def resumed(request: RunRequest, out: Path) -> Run | None:
    """The run in `out` that the request goes on with; None where it begins one. RunError where `out` holds another."""
    refuse_submitted(out)
    if request.resume and Run.exists(out):
        return Run.open(out)
    Run.refuse_held(out)
    return None


def open_run(work: Plan, out: Path, before: Run | None) -> Run:
    """The new run in `out`, or the one there before with what is asked for added; RunError where another has it."""
    if not work.machine["commit"] and (refusal := refusal_of_git()):
        print(f"ttt-bench: no record of this run will name its commit: {refusal}", file=sys.stderr)
    if before:
        refuse_another_kind(before, work)
        return extended(work, out)
    if work.request.resume:
        print(f"ttt-bench: {out}: no run yet; it begins now", file=sys.stderr)
    return Run.create(out, file_of(work, "measure"))


def file_of(work: Plan, mode: str) -> RunFile:
    """What the run.json of a new run of this plan holds; mode: as of `RunFile`."""
    return RunFile(
        mode,  # type: ignore[arg-type]
        work.device,
        work.jobs,
        work.catalogue,
        work.policy,
        work.request.rounds,
        (request_of(work),),
    )


def request_of(work: Plan) -> Request:
    """This call of the program, as a run keeps it."""
    machine, asked = work.machine, work.request.published()
    constant = {name: machine.get(name) for name in ("device", "device_kind", "gpu", "cpu", "software")}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    typed = asked.model_dump(mode="json", exclude_defaults=True)
    return Request(at, tuple(asked.words()), machine["commit"], machine["dirty"], constant, typed)


def extended(work: Plan, out: Path) -> Run:
    """The run in `out` with what is asked for added; RunError where another has it."""
    with Run.open(out).held():
        current = Run.open(out)  # as it is now that nobody else adds to it
        clear(out)
        current.extend(work.jobs, work.catalogue, request_of(work))
    if said := by_another(current):
        print(f"ttt-bench: {said}", file=sys.stderr)
    return current


def retry_of(run: Run, retry: str) -> Retry:
    """Which cases of a run are tried again, as `RunRequest.retry` says; of "marked" those that a page marks."""
    if retry != "marked":
        return not_ok if retry == "failed" else nothing
    keys = disturbed(run.records())
    return lambda record: record.case.key in keys


def by_another(run: Run) -> str:
    """One sentence where the last request of a run is of another commit, tree or GPU than the one before it."""
    if len(run.file.requests) < 2:
        return ""
    before, now = run.file.requests[-2:]
    commits = [
        request.commit and f"{request.commit[:10]}{'-dirty' if request.dirty else ''}" for request in (before, now)
    ]
    gpus = [device_id_of(request.machine) for request in (before, now)]
    pairs = [(kind, *pair) for kind, pair in (("commit", commits), ("GPU", gpus)) if all(pair) and len(set(pair)) > 1]
    others = " and ".join(f"{kind} {old} by {kind} {new}" for kind, old, new in pairs)
    return f"goes on with a run of {others}" if others else ""


def refuse_another_kind(current: Run, work: Plan) -> None:
    """UserError where a run measures otherwise than is asked for, or elsewhere."""
    if current.mode != "measure":
        raise UserError(f"{current.folder}: is a run of mode {current.mode!r}, not 'measure'; name another folder")
    refuse_another_device(current, work)
    own_s, asked_s = current.file.policy.budget_s * current.file.repeats, work.request.budget_s
    if asked_s is not None and not math.isclose(own_s, asked_s, rel_tol=1e-4):
        raise UserError(
            f"{current.folder}: samples each case for {own_s:g} s, not {asked_s:g}; "
            f"name another folder or say --budget {own_s:g}"
        )


def refuse_another_device(current: Run, work: Plan) -> None:
    """UserError where a run is of another kind of device, or was asked for on a machine with another GPU or CPU.

    The machine does not count where it only submits what others run.
    """
    if current.jobs and work.device != current.file.device:
        words = f"is a run of {current.file.device} cases, and these are of {work.device}"
        raise UserError(f"{current.folder}: {words}; name another --out")
    before = current.file.requests[-1].machine if current.file.requests else {}
    here = {before.get("device_kind"), work.machine["device_kind"], work.device}
    if len(here) == 1 and before.get("device") != work.machine["device"]:
        raise UserError(
            f"{current.folder}: is of {before.get('device')}, and this machine has {work.machine['device']}; "
            "name another folder"
        )
