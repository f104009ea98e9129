"""Run an array of Slurm tasks: its batch script, its submission, and task states."""

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.measure.environment import child_environment
from harness.schema.record import RecordError

_PATIENCE_S = 60.0
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_FLAGS = (  # options without a value
    "contiguous", "exclusive", "get-user-env", "hold", "nice", "no-kill", "overcommit", "oversubscribe", "propagate",
    "reboot", "spread-job", "use-min-nodes",
)  # fmt: skip
_ONE_GPU = re.compile(r"gpu(:[A-Za-z][\w.-]*)?(:1)?")
_OTHER_GPUS = ("gpus-per-", "tres-per-")  # would contradict gpus=N
# The script sets these itself.
_OURS = ("array", "requeue", "no-requeue", "output", "error", "open-mode", "chdir", "wrap", "parsable")

REQUEUES = 3  # times that the script requeues a killed task; Slurm itself requeues tasks of a lost node


class SlurmError(RecordError):
    """Raised for a wrong --slurm and if a Slurm command fails, with one sentence."""


@dataclass(frozen=True)
class SlurmRequest:
    """The value of --slurm: an array of parallel Slurm tasks.

    gpu: whether each task gets a GPU. options: for sbatch, by name without dashes; "" for one without a value.
    """

    tasks: int
    gpu: bool
    options: Mapping[str, str]


def parsed(text: str) -> SlurmRequest:
    """Return the request in a value of --slurm, such as `partition=gpu,time=01:00:00,gpus=4`.

    `gpus=4` gives four tasks with one GPU each, `tasks=4` four tasks without a GPU. Raises SlurmError for a wrong
    option.
    """
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if not _OPTION.fullmatch(name) or not value.isprintable():
            raise SlurmError(f"--slurm {part}: must be an option of sbatch as NAME=VALUE")
        if name in _OURS:
            raise SlurmError(f"--slurm {part}: is set by the run itself")
        if name.startswith(_OTHER_GPUS):
            raise SlurmError(f"--slurm {part}: use gpus=N, for N tasks with a GPU each")
        if value == "...":
            raise SlurmError(f"--slurm {part}: stands for a private name in run.json; give the name")
        if name in options:
            raise SlurmError(f"--slurm {name}: is given twice")
        if not value and name not in _FLAGS:
            raise SlurmError(f"--slurm {name}: is not NAME=VALUE; a value cannot hold a comma")
        options[name] = value
    counts = [name for name in ("gpus", "tasks") if name in options]
    if len(counts) != 1:
        raise SlurmError("--slurm: give the number of GPUs, gpus=N, or of tasks without a GPU, tasks=N")
    count = options.pop(counts[0])
    if not count.isdecimal() or not 1 <= int(count) <= 1000:
        raise SlurmError(f"--slurm {counts[0]}={count}: must be a number from 1 to 1000")
    if counts[0] == "gpus" and not _ONE_GPU.fullmatch(gres := options.get("gres", "gpu:1")):
        raise SlurmError(f"--slurm gres={gres}: a task has one GPU; use gres=gpu:1 or gres=gpu:TYPE:1")
    return SlurmRequest(int(count), counts[0] == "gpus", options)


def script(request: SlurmRequest, tasks: int, command: Sequence[str], folder: str, log: str) -> str:
    """Return a batch script whose tasks run `command` in `folder` and append to `log`."""
    options = {"job-name": "ttt-bench", "array": f"0-{tasks - 1}", "requeue": "", "open-mode": "append"}
    options |= {"chdir": folder, "output": log}
    options |= {"gres": "gpu:1"} if request.gpu and "gres" not in request.options else {}
    lines = [_directive(name, value) for name, value in {**options, **request.options}.items()]
    return f"""\
#!/bin/bash
# Written by `ttt-bench run --slurm`. To change it: edit it and submit it again with `sbatch`.
# Each task takes jobs of the run that nobody has, one after another, until none is left.
{chr(10).join(lines)}

# For example: module load cuda; source venv/bin/activate
{shlex.join(command)}
status=$?
# A task that was killed (by the system when memory ended, say) continues with the job it had, a few times.
if [ "$status" -gt 128 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {REQUEUES} ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
"""


def _directive(name: str, value: str) -> str:
    return f"#SBATCH --{name}{'=' + shlex.quote(value) if value else ''}"


def submit(script_path: str) -> str:
    """Submit a batch script and return its Slurm job id, or raise SlurmError."""
    output = _ask(["sbatch", "--parsable", script_path])
    ids = [line.strip().split(";")[0] for line in output.splitlines()]  # a site may print more
    if not (jobs := [job for job in ids if job.isdecimal()]):
        raise SlurmError(f"sbatch answered {output.strip()[:60]!r}, which is no job id")
    return jobs[-1]


def task_states(job: str) -> dict[str, str]:
    """Return the states of a job's unfinished tasks by index, such as {"0": "RUNNING"}."""
    try:
        output = _ask(["squeue", "--noheader", "--array", "--job", job, "--format", "%K %T"])
    except SlurmError as error:
        if "Invalid job id" in str(error):  # Slurm forgets finished jobs
            return {}
        raise
    pairs = (line.split(maxsplit=1) for line in output.splitlines())
    return {pair[0] if pair[0].isdecimal() else "0": pair[1] for pair in pairs if len(pair) == 2}


def _ask(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    except FileNotFoundError:
        raise SlurmError(f"{command[0]}: is not on this machine; a node that submits to Slurm has it") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]}: gave no answer within {_PATIENCE_S:g} s") from None
    except OSError as error:
        raise SlurmError(f"{command[0]}: could not be started: {error.strerror}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SlurmError(f"{command[0]} failed: {'; '.join(lines[-2:]) or f'exit status {done.returncode}'}")
    return done.stdout
