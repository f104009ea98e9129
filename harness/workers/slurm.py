"""Share a run among the tasks of a Slurm array: write and submit the script, run one task."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.measure.environment import output_of
from harness.schema.files import read_regular, write_atomically
from harness.schema.record import RecordError
from harness.schema.run import Run
from harness.schema.run_file import Pair, RunError
from harness.workers.process import DEFAULT_SLOT, GpuSlot, Launch
from harness.workers.scheduler import Options, run_jobs

_OPTION = re.compile(r"[a-z][a-z0-9-]*")
# The script sets these itself.
_SET_BY_SCRIPT = (
    "array", "requeue", "no-requeue", "output", "error", "open-mode", "chdir", "wrap", "parsable", "gpus-per-node",
    "gpus-per-task",
)  # fmt: skip

JOB = "slurm.job"  # file of a run with the id of the Slurm job whose tasks share it
REQUEUES = 3  # maximum requeues of a killed task by the script; Slurm itself requeues tasks of a lost node


class SlurmError(RecordError):
    """Raised for a wrong --slurm or a failed Slurm command, with the reason in one sentence."""


@dataclass(frozen=True)
class SlurmRequest:
    """A value of --slurm: the number of Slurm tasks that share a run, and options of sbatch.

    gpu: whether each task gets a GPU.
    options: {name of an sbatch option without "--": its value, or "" if it takes none}.
    """

    tasks: int
    gpu: bool
    options: Mapping[str, str]


def parsed(text: str) -> SlurmRequest:
    """Parse a value of --slurm, such as `partition=gpu,time=01:00:00,gpus=4`.

    `gpus=4` requests four tasks with a GPU each, `tasks=4` four tasks without GPU.
    Raises SlurmError for a wrong option.
    """
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if not _OPTION.fullmatch(name) or not value.isprintable():
            raise SlurmError(f"--slurm {part}: must be an option of sbatch as NAME=VALUE")
        if name in _SET_BY_SCRIPT:
            raise SlurmError(f"--slurm {part}: is set by the run itself")
        options[name] = value
    counts = [name for name in ("gpus", "tasks") if name in options]
    if len(counts) != 1:
        raise SlurmError(f"--slurm {text}: give the number of GPUs, gpus=N, or of tasks without a GPU, tasks=N")
    count = options.pop(counts[0])
    if not count.isdecimal() or not 1 <= int(count) <= 1000:
        raise SlurmError(f"--slurm {counts[0]}={count}: must be a number from 1 to 1000")
    return SlurmRequest(int(count), counts[0] == "gpus", options)


def script(request: SlurmRequest, tasks: int, command: Sequence[str], folder: str, log: str) -> str:
    """Return a batch script: `tasks` tasks run `command` in `folder` and append to `log`."""
    options = {"job-name": "ttt-bench", "array": f"0-{tasks - 1}", "requeue": "", "open-mode": "append"}
    options |= {"chdir": folder, "output": log}
    options |= {"gres": "gpu:1"} if request.gpu and "gres" not in request.options else {}
    every = {**options, **request.options}.items()
    lines = [f"#SBATCH --{name}{'=' + shlex.quote(value) if value else ''}" for name, value in every]
    return f"""\
#!/bin/bash
# Written by `ttt-bench run --slurm`. To change it: edit it and submit it again with `sbatch`.
# Task i of n runs every n-th job of the run, from the i-th on.
{chr(10).join(lines)}

# For example: module load cuda; source venv/bin/activate
{shlex.join(command)}
status=$?
# A killed task (for lack of memory, for example) is requeued a few times and continues with its jobs.
if [ "$status" -gt 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {REQUEUES} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def submit(script_path: str) -> str:
    """Submit a batch script and return its Slurm job id, or raise SlurmError."""
    output = _run(["sbatch", "--parsable", script_path])
    ids = [line.strip().split(";")[0] for line in output.splitlines()]  # a site's sbatch may print other lines too
    if not (jobs := [job for job in ids if job.isdecimal()]):
        raise SlurmError(f"sbatch answered {output.strip()[:60]!r}, which is not a job id")
    return jobs[-1]


def task_states(job: str) -> dict[str, str]:
    """Return {task index: state} of a Slurm job's unfinished tasks, such as {"0": "RUNNING"}."""
    try:
        output = _run(["squeue", "--noheader", "--array", "--job", job, "--format", "%K %T"])
    except SlurmError as error:
        if "Invalid job id" in str(error):  # Slurm forgets finished jobs
            return {}
        raise
    pairs = (line.split(maxsplit=1) for line in output.splitlines())
    return {pair[0] if pair[0].isdecimal() else "0": pair[1] for pair in pairs if len(pair) == 2}


@dataclass(frozen=True)
class Task:
    """This process as task `number` (from 0) of the `count` tasks in the Slurm job `array`."""

    array: str
    number: int
    count: int

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> "Task | None":
        """Return this process's task; None outside of a Slurm job. SlurmError if the array is no range."""
        array = environment.get("SLURM_ARRAY_JOB_ID") or environment.get("SLURM_JOB_ID")
        index, first, last = (int(environment.get(f"SLURM_ARRAY_TASK_{name}", "0")) for name in ("ID", "MIN", "MAX"))
        number, count = index - first, int(environment.get("SLURM_ARRAY_TASK_COUNT", "1"))
        if last - first + 1 != count:  # tasks could have the same jobs
            raise SlurmError(f"--array of {count} tasks: is no range; submit the script with one, as 0-{count - 1}")
        return cls(array, number, count) if array else None


def run_task(
    run: Run, launches: Mapping[Pair, Launch], task: Task, options: Options, slot: GpuSlot = DEFAULT_SLOT
) -> list[str]:
    """Run a task's share of `options.jobs` (None: all jobs); return the names of its jobs.

    Raises RunError if another process or Slurm job holds the run, or for a lost GPU.
    """
    jobs = (run.jobs if options.jobs is None else options.jobs)[task.number :: task.count]
    with run.held(shared=True):
        if submitted_job(run.folder) != task.array:  # the user submitted the script
            refuse_submitted(run.folder)
            write_atomically(run.folder / JOB, task.array)
        run_jobs(run, launches, replace(options, jobs=jobs), [slot], shared=True)
    return [job.name for job in jobs]


def submitted_job(folder: Path) -> str:
    """Return the id of a run's last Slurm job; "" for none."""
    try:
        return read_regular(folder / JOB).decode().strip()
    except OSError:
        return ""


def refuse_submitted(folder: Path) -> None:
    """Raise RunError if the run may still be running in Slurm."""
    if not (job := submitted_job(folder)):
        return
    try:
        alive = task_states(job)
    except SlurmError as error:
        raise RunError(
            f"{folder}: was submitted as Slurm job {job}, whose state is unknown here ({error}); "
            f"if it has ended, remove {folder / JOB}"
        ) from None
    if alive:
        raise RunError(
            f"{folder}: Slurm job {job} is writing to it; "
            f"follow it (ttt-bench status {shlex.quote(str(folder))}), or cancel it (scancel {job})"
        )


def _run(command: Sequence[str]) -> str:
    output, failure = output_of(command)
    if failure:
        lines = [line.strip() for line in failure.splitlines() if line.strip()]
        raise SlurmError(f"{command[0]} failed: {'; '.join(lines[-2:])}")
    return output
