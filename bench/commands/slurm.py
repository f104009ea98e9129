"""`ttt-bench run --slurm` and `ttt-bench work`: share a run's jobs in a Slurm array."""

import os
import shlex
import sys
from pathlib import Path

from bench.cases import with_keys
from bench.errors import UserError
from bench.models.case_model import register_checkpoint
from bench.plan import Plan, plan
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
    wanted = slurm.parsed(request.slurm or "")
    before = resumed(request, out)
    work = plan(request, before)
    current = open_run(work, out, before)
    with current.held(), refusing(out, "written", RunError):
        retry = retry_of(current, request.retry)
        left = [cases for job in with_keys(current.jobs, work.keys) if (cases := unfinished(current, job, 0, retry))]
        if not left:
            print(f"{out}: every requested case is finished; submitted no Slurm job")
            return
        tasks = min(wanted.tasks, len(left))
        (out / "log").mkdir(exist_ok=True)
        log = f"{out.resolve()}/log/task-".replace("%", "%%") + "%a.log"
        script = slurm.script(wanted, tasks, _command(request, out), str(Path.cwd()), log)
        write_atomically(out / SCRIPT, script)
        write_atomically(out / KEYS, "".join(f"{planned.case.key}\n" for cases in left for planned in cases))
        try:
            array = slurm.submit(str(out / SCRIPT))
        except slurm.SlurmError as error:
            raise UserError(f"{error}; the run is planned; to submit it: {request.resume_command(out)}") from None
        write_atomically(out / slurm.JOB, array)
    note(*work.notes)
    jobs = counted(len(left), "job")
    print(
        f"Slurm job {array}: {counted(tasks, 'task')} for {jobs} of {counted(sum(map(len, left)), 'case')}\n"
        f"  to follow it:  ttt-bench status {shlex.quote(str(out))}\n"
        f"  to cancel it:  scancel {array}\n"
        f"  its script:    {out / SCRIPT}"
    )


def _command(request: RunRequest, out: Path) -> list[str]:
    variables = [f"{name}={value}" for name, value in path_of_code(os.environ).items()]
    # -P keeps the working folder off sys.path.
    command = ["env", *variables, sys.executable, "-P", "-m", "bench", "work", str(out), "--keys", str(out / KEYS)]
    if request.checkpoint:
        command += ["--checkpoint", str(request.checkpoint.resolve())]
    return command


def work(out: Path, keys: Path, checkpoint: Path | None) -> None:
    """Run this Slurm task's share of the jobs of the run in `out`.

    checkpoint: the checkpoint's folder, which run.json does not store. Raises UserError outside of a Slurm task.
    """
    task = slurm.Task.here()
    if task is None:
        raise UserError("work: must run in a Slurm task, and SLURM_JOB_ID is not set; see `ttt-bench run --slurm`")
    run = Run.open(out)
    request = RunRequest.stored(run.file.requests[-1].request if run.file.requests else {})
    with refusing(keys, "read", UserError):
        jobs = with_keys(run.jobs, set(read_regular(keys).decode().split()))
    if checkpoint:
        register_checkpoint(checkpoint)
    device = run.file.device
    machine = snapshot("cpu" if device == "cpu" else "")  # a node of a run on the CPU may have a GPU
    node = Plan(request, device, machine, tuple(jobs), run.catalogue)
    if not node.has_device:
        raise UserError(f"{out}: is a run on a GPU, and this task's node has none; request gpus=N with --slurm")
    [slot] = slots_of(visible_gpus()[:1] if device == "cuda" else [], device)
    try:
        with Progress(f"task {task.number}") as progress:
            retry = retry_of(run, request.retry)
            options = Options(jobs=jobs, limits=request.limits, retry=retry, skip=node.skip, on_event=progress)
            done = slurm.run_task(run, node.worker_launches, task, options, slot)
    except KeyboardInterrupt:
        # Status 1 instead of 130, because the script restarts a task whose status is above 128.
        sys.exit("ttt-bench: interrupted; finished cases are kept")
    print(f"task {task.number}: {counted(len(done), 'job')} done{': ' if done else ''}{', '.join(done)}")
