"""`ttt-bench run --slurm` and `ttt-bench work`: share a run among the tasks of a Slurm array."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench import estimate
from bench.commands.planning import ToRetry, open_checkpoint, open_run, plan, retry_of, to_continue
from bench.environments import launches
from bench.errors import UserError
from bench.memory import total_memory_bytes
from bench.plan import skip_reason, with_keys
from bench.selection import Asked
from harness.measure.environment import snapshot
from harness.measure.nvml import visible_gpus
from harness.schema import claims
from harness.schema.claims import Holder
from harness.schema.files import read_regular, refusing, write_atomically
from harness.schema.reason import counted
from harness.schema.run import Run
from harness.schema.run_file import Job, RunError
from harness.workers import slurm
from harness.workers.pool import gpu_places
from harness.workers.process import HERE, Limits, path_of_code
from harness.workers.progress import Progress
from harness.workers.scheduler import Options
from harness.workers.task import run_task

SCRIPT, KEYS = "slurm.sbatch", "slurm.keys"


def submit(
    asked: Asked,
    out: Path,
    wanted: str,
    *,
    resume: bool,
    retry: ToRetry,
    limits: Limits,
    arguments: Sequence[str],
) -> None:
    """Plan the run `out` here, without its GPUs, and submit tasks that run it."""
    request, asked = asked_of_slurm(asked, wanted)
    work = plan(asked)
    current = open_run(work, out, resume=resume, arguments=arguments)
    tasks = min(request.tasks, len(work.jobs))
    with current.held():
        claims.clear(out)
        command = _command(asked, out, retry, limits)
        with refusing(out, "written", RunError):
            (out / "log").mkdir(exist_ok=True)
            log = f"{out.resolve()}/log/task-".replace("%", "%%") + "%a.log"
            write_atomically(out / SCRIPT, slurm.script(request, tasks, command, str(Path.cwd()), log))
            write_atomically(out / KEYS, "".join(f"{key}\n" for key in sorted(work.keys)))
        try:
            array = slurm.submit(str(out / SCRIPT))
        except slurm.SlurmError as error:
            raise UserError(f"{error}; the run is planned; to submit it: {to_continue(arguments, out)}") from None
        claims.note_submission(out, array)
    jobs = counted(len(work.jobs), "job")
    print(
        f"Slurm job {array}: {counted(tasks, 'task')} for {jobs} of {counted(work.total, 'case')}\n"
        f"  to follow it:  ttt-bench status {out}\n"
        f"  to cancel it:  ttt-bench status {out} --cancel\n"
        f"  its script:    {out / SCRIPT}"
    )


def asked_of_slurm(asked: Asked, wanted: str) -> tuple[slurm.SlurmRequest, Asked]:
    """What `--slurm` wants, and the request: tasks with GPUs run on them, whatever this machine has."""
    request = slurm.parsed(wanted)
    return request, replace(asked, device="cuda") if request.gpu and asked.device == "auto" else asked


def _command(asked: Asked, out: Path, retry: ToRetry, limits: Limits) -> list[str]:
    """What each task runs: of the run, which earlier calls may have planned more of, the cases that are asked for.

    By this code (-P): what lies in the folder where a task begins must not stand in for it.
    """
    here = [f"{name}={value}" for name, value in path_of_code(os.environ).items()]
    command = ["env", *here, sys.executable, "-P", "-m", "bench", "work", str(out), "--keys", str(out / KEYS)]
    if asked.checkpoint:
        command += ["--checkpoint", str(asked.checkpoint.resolve())]
    if asked.systems_file:
        command += ["--systems-file", str(asked.systems_file)]
    command += ["--retry", retry, "--time-limit", f"{limits.case_s:g}", "--start-limit", f"{limits.start_s:g}"]
    return command


def work(
    out: Path,
    keys: Path | None,
    systems_file: Path | None,
    *,
    retry: ToRetry,
    limits: Limits,
    checkpoint: Path | None = None,
) -> None:
    """Be one task: run the jobs of `out` that no other task has, of them the cases whose keys a file has."""
    open_checkpoint(checkpoint)
    holder = Holder.here()
    if not holder.array:
        raise UserError("work: is what a task of Slurm runs, and SLURM_JOB_ID is not set; see `ttt-bench run --slurm`")
    run = Run.open(out)
    jobs = _jobs(run, keys)
    device = run.file.device
    machine = snapshot("cpu" if device == "cpu" else "")  # a node may have a GPU that the run is not of
    if machine["device_kind"] != device:
        raise UserError(f"{out}: is a run of a GPU, and none was found on this task's node; ask for gpus=N by --slurm")
    known = launches(systems_file, device)
    for job in jobs:
        if job.pair not in known:
            raise UserError(f"{out}: has the job {job.name}, which this version of the program cannot run")
    memory_bytes = total_memory_bytes(machine)
    gpus = gpu_places(visible_gpus()[:1]) if device == "cuda" else []
    ordered = estimate.longest_first(jobs, estimate.past_durations(machine, out))
    try:
        with Progress(f"task {holder.name}") as progress:
            done = run_task(
                run,
                known,
                holder,
                Options(
                    jobs=ordered,
                    limits=limits,
                    retry=retry_of(run, retry),
                    skip=lambda planned, earlier: skip_reason(planned, earlier, memory_bytes),
                    on_event=progress,
                ),
                gpus[0] if gpus else HERE,
            )
    except KeyboardInterrupt:
        # Not 130: the script takes that for a task that was killed and is to continue.
        sys.exit("ttt-bench: interrupted; what is finished is kept")
    print(f"task {holder.name}: {len(done)} jobs done{': ' if done else ''}{', '.join(done)}")


def _jobs(run: Run, keys: Path | None) -> list[Job]:
    if keys is None:
        return list(run.jobs)
    with refusing(keys, "read", UserError):
        wanted = set(read_regular(keys).decode(errors="replace").split())
    return with_keys(run.jobs, wanted)
