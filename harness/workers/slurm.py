"""Slurm, by its own commands: write the script of an array of tasks, submit it, ask what became of it, cancel it."""

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.measure.variables import child_environment
from harness.schema.record import RecordError

_PATIENCE_S = 60.0
_OPTION = re.compile(r"[a-z][a-z0-9-]*")
_FLAGS = (  # that may have no value
    "contiguous", "exclusive", "get-user-env", "hold", "nice", "no-kill", "overcommit", "oversubscribe", "propagate",
    "reboot", "spread-job", "use-min-nodes",
)  # fmt: skip
_ONE_GPU = re.compile(r"gpu(:[A-Za-z][\w.-]*)?(:1)?")
_OTHER_GPUS = ("gpus-per-", "tres-per-")  # other ways to ask for what gpus=N says
# What the script itself must say, or the run cannot be shared and gone on with.
_OURS = ("array", "requeue", "no-requeue", "output", "error", "open-mode", "chdir", "wrap", "parsable")

REQUEUES = 3  # of a task that was killed, by itself; a lost node requeues it as often as Slurm allows


class SlurmError(RecordError):
    """One sentence: an option that cannot be, or what Slurm said."""


@dataclass(frozen=True)
class SlurmRequest:
    """What is asked of Slurm. tasks: how many at once; gpu: whether each has one; options: of sbatch, by name."""

    tasks: int
    gpu: bool
    options: Mapping[str, str]


def parsed(text: str) -> SlurmRequest:
    """The request in `partition=gpu,time=01:00:00,gpus=4`; `tasks=4` instead of gpus for tasks without one."""
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.partition("=")
        if not _OPTION.fullmatch(name) or not value.isprintable():
            raise SlurmError(f"--slurm {part}: must be an option of sbatch as NAME=VALUE")
        if name in _OURS:
            raise SlurmError(f"--slurm {part}: is set by the run itself")
        if name.startswith(_OTHER_GPUS):
            raise SlurmError(f"--slurm {part}: say gpus=N, for N tasks of a GPU each")
        if value == "...":
            raise SlurmError(f"--slurm {part}: is what a run says in place of a name; say the name")
        if name in options:
            raise SlurmError(f"--slurm {name}: is said twice")
        if not value and name not in _FLAGS:
            raise SlurmError(f"--slurm {name}: is not NAME=VALUE; a value cannot hold a comma")
        options[name] = value
    counts = [name for name in ("gpus", "tasks") if name in options]
    if len(counts) != 1:
        raise SlurmError("--slurm: say how many GPUs, gpus=N, or how many tasks without one, tasks=N")
    count = options.pop(counts[0])
    if not count.isdecimal() or not 1 <= int(count) <= 1000:
        raise SlurmError(f"--slurm {counts[0]}={count}: must be a number from 1 to 1000")
    if counts[0] == "gpus" and not _ONE_GPU.fullmatch(gres := options.get("gres", "gpu:1")):
        raise SlurmError(f"--slurm gres={gres}: is of one task, which has one GPU; say gres=gpu:1 or gres=gpu:TYPE:1")
    return SlurmRequest(int(count), counts[0] == "gpus", options)


def script(request: SlurmRequest, tasks: int, command: Sequence[str], folder: str, log: str) -> str:
    """The batch script of an array of `tasks`, each of which runs `command` in `folder` and adds to its `log`."""
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
    """A line that sbatch reads; it takes quotes as a shell does."""
    return f"#SBATCH --{name}{'=' + shlex.quote(value) if value else ''}"


def submit(script_path: str) -> str:
    """The id of the job that sbatch makes of a script."""
    said = _ask(["sbatch", "--parsable", script_path])
    ids = [line.strip().split(";")[0] for line in said.splitlines()]  # a site may say more
    if not (jobs := [job for job in ids if job.isdecimal()]):
        raise SlurmError(f"sbatch answered {said.strip()[:60]!r}, which is no id of a job")
    return jobs[-1]


def task_states(job: str) -> dict[str, str]:
    """The state of each task of an array that has not ended, by its index, such as {"0": "RUNNING"}."""
    try:
        said = _ask(["squeue", "--noheader", "--array", "--job", job, "--format", "%K %T"])
    except SlurmError as error:
        if "Invalid job id" in str(error):  # what squeue says once Slurm has forgotten a job that ended
            return {}
        raise
    pairs = (line.split(maxsplit=1) for line in said.splitlines())
    return {pair[0] if pair[0].isdecimal() else "0": pair[1] for pair in pairs if len(pair) == 2}


def cancel(job: str) -> None:
    """End every task of an array."""
    _ask(["scancel", job])


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
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SlurmError(f"{command[0]} refused: {'; '.join(said[-2:]) or f'exit status {done.returncode}'}")
    return done.stdout
