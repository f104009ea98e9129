"""`ttt-bench status`: show the progress of a run and the processes that work on it."""

from collections import Counter
from pathlib import Path

from bench.commands.measure import summary
from bench.request import RunRequest
from bench.terminal import print_rows
from harness.schema import claims
from harness.schema.claims import Holder
from harness.schema.run import Run, latest
from harness.workers import slurm


def status(out: Path) -> None:
    """Print unfinished jobs and their processes, or how to continue an idle run."""
    run = Run.open(out)
    submitted = claims.noted(out, claims.SUBMISSION)
    states, unknown = _states(submitted)
    alone = claims.noted(out, claims.PROCESS)
    holder = alone or (submitted if states is None or states else None)
    rows, records = [], []
    for job in run.jobs:
        found = latest(job, run.job_records(job))
        records += found
        whole = len(job.cases) * run.file.repeats
        if len(found) < whole:
            rows.append((job.name, f"{len(found)} of {whole}", f"held by {holder}" if holder else "left"))
    if rows:
        print_rows(("job", "cases", "state"), rows)
    if done := len(run.jobs) - len(rows):
        print(f"{done} of {len(run.jobs)} jobs done")
    of = f"{len(records)} of {sum(len(job.cases) for job in run.jobs) * run.file.repeats} cases"
    print(f"{of}: {summary(records)}" if records else of)
    if submitted:
        counts = ", ".join(f"{count} {state.lower()}" for state, count in Counter((states or {}).values()).items())
        print(f"{submitted}: {unknown or counts or 'ended'}")
    elsewhere = alone is not None and not alone.is_here and bool(rows)
    if not states and not unknown and (elsewhere or any(row[2] == "left" for row in rows)):
        note = f"{alone} may have ended" if elsewhere else "no process works on this run"
        command = _to_continue(run, out)
        print(f"{note}; to continue:\n  {command}" if command else note)


def _to_continue(run: Run, out: Path) -> str:
    """Return "" if the run cannot continue: a side of `ab`, or a run of version 0.1, which stored no request."""
    last = run.file.requests[-1].request if run.file.requests else {}
    return RunRequest.stored(last).to_continue(out) if last and last.get("command") != "ab" else ""


def _states(submitted: Holder | None) -> tuple[dict[str, str] | None, str]:
    """Return (state of unfinished Slurm tasks by index, ""), or (None, why there is none)."""
    if submitted is None:
        return {}, ""
    try:
        return slurm.task_states(submitted.array), ""
    except slurm.SlurmError as error:
        return None, str(error)
