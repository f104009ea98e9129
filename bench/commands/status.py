"""`ttt-bench status`: show the progress of a run, and whether a process works on it."""

from collections import Counter
from pathlib import Path

from bench.commands.measure import summary
from bench.request import RunRequest
from bench.terminal import print_rows
from harness.schema.run import Run, latest
from harness.workers import slurm


def status(out: Path) -> None:
    """Print unfinished jobs, cases by status and, if the run is not running, how to continue it."""
    run = Run.open(out)
    submitted, states, unknown = slurm.submitted_job(out), dict[str, str](), ""
    try:
        states = slurm.task_states(submitted) if submitted else states
    except slurm.SlurmError as error:
        unknown = str(error)
    holder = f"Slurm job {submitted}" if states or unknown else "a process" if run.is_held else ""
    rows, records = [], []
    for job in run.jobs:
        found = latest(job, run.job_records(job))
        records += found
        whole = len(job.cases) * run.file.repeats
        if len(found) < whole:
            rows.append((job.name, f"{len(found)} of {whole}", f"running: {holder}" if holder else "not finished"))
    if rows:
        print_rows(("job", "cases", "state"), rows)
    if done := len(run.jobs) - len(rows):
        print(f"{done} of {len(run.jobs)} jobs done")
    progress = f"{len(records)} of {sum(len(job.cases) for job in run.jobs) * run.file.repeats} cases"
    print(f"{progress}: {summary(records)}" if records else progress)
    if submitted:
        counts = ", ".join(f"{count} {state.lower()}" for state, count in Counter(states.values()).items())
        print(f"Slurm job {submitted}: {unknown or counts or 'ended'}")
    if rows and not holder:
        last = run.file.requests[-1].request if run.file.requests else {}  # {} in a run of version 0.1
        command = RunRequest.stored(last).resume_command(out, "lost") if last and last.get("command") != "ab" else ""
        print("this run is not running" + (f"; to continue:\n  {command}" if command else ""))
