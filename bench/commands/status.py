"""`ttt-bench status`: how far a run is, who works on it, and how to end that."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.commands.measure import summary
from bench.commands.planning import keys_asked, to_continue
from bench.errors import UserError
from bench.selection import Asked
from bench.terminal import print_rows
from harness.schema import claims
from harness.schema.claims import Claims, Holder
from harness.schema.record import Record
from harness.schema.run import Run, latest
from harness.schema.run_file import Job
from harness.workers import slurm

AskedBy = Callable[[Sequence[str]], Asked]  # of a call's arguments; raises UserError where they cannot be read


def status(out: Path, cancel: bool, asked_by: AskedBy) -> None:
    """Print each job that is not done, with its finished cases and its holder, and how to go on where nobody works.

    With `cancel`, end the Slurm job of the run first.
    """
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
        if state != "done":
            rows.append((job.name, f"{len(found)} of {whole}", state))
    if rows:
        print_rows(("job", "cases", "state"), rows)
    if done := len(run.jobs) - len(rows):
        print(f"{done} of {len(run.jobs)} jobs done")
    of = f"{len(records)} of {sum(len(job.cases) for job in run.jobs) * run.file.repeats} cases"
    print(f"{of}: {summary(records)}" if records else of)
    if submitted:
        counts = ", ".join(f"{count} {state.lower()}" for state, count in Counter((states or {}).values()).items())
        print(f"Slurm job {submitted.array}, submitted from {submitted.host}: {unknown or counts or 'ended'}")
    elsewhere = alone is not None and not alone.is_here and bool(rows)
    if not states and not unknown and (elsewhere or any(row[2] == "left" for row in rows)):
        said = f"{alone} may be gone" if elsewhere else "no process is running it"
        commands, finished = _commands_to_continue(run, out, records, asked_by)
        said += f"; {finished} of {finished + len(commands)} different commands finished" if finished else ""
        print("\n  ".join([f"{said}{'; to continue:' if commands else ''}", *commands]))


def _commands_to_continue(run: Run, out: Path, records: Sequence[Record], asked_by: AskedBy) -> tuple[list[str], int]:
    """One for each thing that the run was asked for and has not finished, and how many others it has finished.

    None of a run that cannot go on, as a side of `ab`.
    """
    recorded = Counter(record.case.key for record in records)
    cases = [planned.case for job in run.jobs for planned in job.cases]
    left = {case.key for case in cases if recorded[case.key] < run.file.repeats}

    def left_of(arguments: Sequence[str]) -> set[str]:
        """What is left of a request; of one that cannot be planned here, anything may be, and what no other has."""
        try:
            return left & keys_asked(asked_by(arguments), run.file.device)
        except UserError:
            return {*left, " ".join(arguments)}

    asked = [each.arguments for each in run.file.requests if each.arguments[:1] in (("run",), ("profile",))]
    commands = {to_continue(arguments, out): left_of(arguments) for arguments in asked}
    if set().union(*commands.values()) < left:  # of suites that have changed since: it is not known whose the rest is
        return list(commands), 0
    unfinished = {command: its for command, its in commands.items() if its}
    return list(_needed(unfinished)), len(commands) - len(unfinished)


def _needed(left: Mapping[str, set[str]]) -> Iterator[str]:
    """The commands but those whose cases another one measures too; of two of the same cases the later."""
    each = list(left.items())
    for at, (command, own) in enumerate(each):
        if not any(own < other for _, other in each) and all(own != other for _, other in each[at + 1 :]):
            yield command


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
