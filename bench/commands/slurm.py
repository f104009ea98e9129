"""`ttt-bench run --slurm` and `ttt-bench work`: share a run in a Slurm array."""

import os
import sys
from pathlib import Path

from bench.cases import with_keys
from bench.environments import launches
from bench.errors import UserError
from bench.memory import total_memory_bytes
from bench.plan import Plan, open_checkpoint, plan, skips
from bench.request import RunRequest
from bench.run_folder import open_run, resumed, retry_of
from bench.terminal import note
from harness.measure.environment import snapshot
from harness.measure.nvml import visible_gpus
from harness.schema.files import read_regular, refusing, write_atomically
from harness.schema.reason import counted
from harness.schema.run import Run
from harness.schema.run_file import RunError
from harness.workers import slurm
from harness.workers.pool import slots_of
from harness.workers.process import path_of_code
from harness.workers.progress import Progress
from harness.workers.scheduler import Options, unfinished

SCRIPT, KEYS = "slurm.sbatch", "slurm.keys"


def submit(request: RunRequest, out: Path) -> None:
    """Plan a run on this machine, which needs no GPU, and submit a Slurm array for it."""
    wanted, request = slurm_options(request)
    before = resumed(request, out)
    work = plan(request, before)
    current = open_run(work, out, before)
    tasks = min(wanted.tasks, len(work.jobs))
    with current.held():
        with refusing(out, "written", RunError):
            (out / "log").mkdir(exist_ok=True)
            log = f"{out.resolve()}/log/task-".replace("%", "%%") + "%a.log"
            script = slurm.script(wanted, tasks, _command(request, out), str(Path.cwd()), log)
            write_atomically(out / SCRIPT, script)
            write_atomically(out / KEYS, "".join(f"{key}\n" for key in sorted(_unfinished(current, work, request))))
        try:
            array = slurm.submit(str(out / SCRIPT))
        except slurm.SlurmError as error:
            raise UserError(f"{error}; the run is planned; to submit it: {request.to_continue(out)}") from None
        with refusing(out, "written", RunError):
            write_atomically(out / slurm.JOB, array)
    note(*work.notes)
    jobs = counted(len(work.jobs), "job")
    print(
        f"Slurm job {array}: {counted(tasks, 'task')} for {jobs} of {counted(work.total, 'case')}\n"
        f"  to follow it:  ttt-bench status {out}\n"
        f"  to cancel it:  scancel {array}\n"
        f"  its script:    {out / SCRIPT}"
    )


def slurm_options(request: RunRequest) -> tuple[slurm.SlurmRequest, RunRequest]:
    """Return the options of --slurm, and the request with "cuda" for "auto" if tasks have GPUs."""
    wanted = slurm.parsed(request.slurm or "")
    on_gpus = wanted.gpu and request.device == "auto"
    return wanted, request.model_copy(update={"device": "cuda"}) if on_gpus else request


def _command(request: RunRequest, out: Path) -> list[str]:
    """Return a task's command; -P keeps code in the task's working folder from replacing this code."""
    here = [f"{name}={value}" for name, value in path_of_code(os.environ).items()]
    command = ["env", *here, sys.executable, "-P", "-m", "bench", "work", str(out), "--keys", str(out / KEYS)]
    if request.checkpoint:
        command += ["--checkpoint", str(request.checkpoint.resolve())]
    return command


def _unfinished(run: Run, work: Plan, request: RunRequest) -> set[str]:
    """Return the keys of the cases still to run; tasks share only the jobs that have some."""
    retry, jobs = retry_of(run, request.retry), work.requested(run.jobs)
    todo = [unfinished(run, job, repeat, retry) for job in jobs for repeat in range(run.file.repeats)]
    return {planned.case.key for cases in todo for planned in cases}


def work(out: Path, keys: Path, checkpoint: Path | None) -> None:
    """Run this Slurm task's share of the jobs of the run in `out`.

    keys: a file with the keys of the cases to run, one per line.
    checkpoint: the checkpoint's folder, which run.json does not store. Raises UserError outside of a Slurm task.
    """
    open_checkpoint(checkpoint)
    task = slurm.Task.here()
    if task is None:
        raise UserError("work: runs as a task of Slurm, and SLURM_JOB_ID is not set; see `ttt-bench run --slurm`")
    run = Run.open(out)
    request = RunRequest.stored(run.file.requests[-1].request if run.file.requests else {})
    with refusing(keys, "read", UserError):
        jobs = with_keys(run.jobs, set(read_regular(keys).decode().split()))
    device = run.file.device
    machine = snapshot("cpu" if device == "cpu" else "")  # a node of a run on the CPU may have a GPU
    if machine["device_kind"] != device:
        raise UserError(f"{out}: is a run on a GPU, and this task's node has none; request gpus=N by --slurm")
    known = launches(device)
    [slot] = slots_of(visible_gpus()[:1] if device == "cuda" else [], device)
    try:
        with Progress(f"task {task.number}") as progress:
            options = Options(
                jobs=jobs,
                limits=request.limits,
                retry=retry_of(run, request.retry),
                skip=skips(known, total_memory_bytes(machine)),
                on_event=progress,
            )
            done = slurm.run_task(run, known, task, options, slot)
    except KeyboardInterrupt:
        # Status 1 instead of 130, because the script restarts a task whose status is above 128.
        sys.exit("ttt-bench: interrupted; finished cases are kept")
    print(f"task {task.number}: {len(done)} jobs done{': ' if done else ''}{', '.join(done)}")
