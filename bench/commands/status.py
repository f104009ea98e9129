"""`ttt-bench status`: how far a run is, who works on it, and how to end that."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from bench.commands.measure import summary
from bench.commands.planning import to_continue
from bench.errors import UserError
from bench.terminal import print_rows
from harness import claims, slurm
from harness.claims import Claims, Holder
from harness.run import Job, Run, latest


def status(out: Path, cancel: bool) -> None:
    """Print each job with its finished cases and its holder; with `cancel`, end the Slurm job of the run first."""
    run = Run.open(out)
    submitted = claims.submission(out)
    if cancel:
        _cancel(out, submitted)
    states, unknown = _states(submitted)
    alone = claims.holder_alone(run.folder)
    rows, records = [], []
    for job in run.jobs:
        found = latest(job, run.job_records(job))
        records += found
        whole = len(job.cases) * run.file.repeats
        state = _state(run, job, len(found) == whole, submitted, states, alone)
        rows.append((job.name, f"{len(found)} of {whole}", state))
    print_rows(("job", "cases", "state"), rows)
    of = f"{len(records)} of {sum(len(job.cases) for job in run.jobs) * run.file.repeats} cases"
    print(f"{of}: {summary(records)}" if records else of)
    if submitted:
        counts = ", ".join(f"{count} {state.lower()}" for state, count in Counter((states or {}).values()).items())
        print(f"Slurm job {submitted.array}, submitted from {submitted.host}: {unknown or counts or 'ended'}")
    elsewhere = alone is not None and not alone.is_here and any(row[2] != "done" for row in rows)
    if not states and not unknown and (elsewhere or any(row[2] == "left" for row in rows)):
        commands = _commands_to_continue(run, out)
        said = f"{alone} may be gone" if elsewhere else "no process is running it"
        print("\n  ".join([f"{said}{'; to continue:' if commands else ''}", *commands]))


def _commands_to_continue(run: Run, out: Path) -> list[str]:
    """One for each thing that the run was asked for; none of a run that cannot go on, as a side of `ab`."""
    asked = [each.arguments for each in run.file.requests if each.arguments[:1] in (("run",), ("profile",))]
    return list(dict.fromkeys(to_continue(arguments, out) for arguments in asked))


def _state(
    run: Run,
    job: Job,
    whole: bool,
    submitted: Holder | None,
    states: Mapping[str, str] | None,
    alone: Holder | None,
) -> str:
    if submitted:
        claimed = Claims(run.folder, submitted.array)
        if claimed.is_finished(job.name):
            return "done"
        holder = claimed.holder(job.name)
        if holder and (states is None or holder.index in states):
            return f"held by {holder}"
    if alone:
        return "done" if whole else f"held by {alone}"
    return "done" if whole else "left"


def _states(submitted: Holder | None) -> tuple[dict[str, str] | None, str]:
    """The states of the tasks, None where they are not known; and why."""
    if submitted is None:
        return {}, ""
    try:
        return slurm.task_states(submitted.array), ""
    except slurm.SlurmError as error:
        return None, str(error)


def _cancel(out: Path, submitted: Holder | None) -> None:
    if submitted is None:
        raise UserError(f"{out}: --cancel: was not submitted to Slurm")
    slurm.cancel(submitted.array)
    print(f"Slurm job {submitted.array} is cancelled; what is finished is kept")
