"""`ttt-bench run --slurm` and `ttt-bench work`: share a run among the tasks of a Slurm array."""

import os
import sys
from pathlib import Path

from bench import estimate
from bench.environments import failed_install, launches
from bench.errors import UserError
from bench.memory import total_memory_bytes
from bench.plan import open_checkpoint, plan, skip_reason, with_keys
from bench.request import RunRequest
from bench.run_folder import open_run, resumed, retry_of
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
from harness.workers.process import HERE, path_of_code
from harness.workers.progress import Progress
from harness.workers.scheduler import Options
from harness.workers.task import run_task

SCRIPT, KEYS = "slurm.sbatch", "slurm.keys"


def submit(request: RunRequest, out: Path) -> None:
    """Plan the run `out` here, without its GPUs, and submit tasks that run it."""
    wanted, request = asked_of_slurm(request)
    before = resumed(request, out)
    work = plan(request, before)
    current = open_run(work, out, before)
    tasks = min(wanted.tasks, len(work.jobs))
    with current.held():
        claims.clear(out)
        with refusing(out, "written", RunError):
            (out / "log").mkdir(exist_ok=True)
            log = f"{out.resolve()}/log/task-".replace("%", "%%") + "%a.log"
            script = slurm.script(wanted, tasks, _command(request, out), str(Path.cwd()), log)
            write_atomically(out / SCRIPT, script)
            write_atomically(out / KEYS, "".join(f"{key}\n" for key in sorted(work.keys)))
        try:
            array = slurm.submit(str(out / SCRIPT))
        except slurm.SlurmError as error:
            raise UserError(f"{error}; the run is planned; to submit it: {request.to_continue(out)}") from None
        claims.note_submission(out, array)
    for said in work.notes:
        print(f"ttt-bench: {said}", file=sys.stderr)
    jobs = counted(len(work.jobs), "job")
    print(
        f"Slurm job {array}: {counted(tasks, 'task')} for {jobs} of {counted(work.total, 'case')}\n"
        f"  to follow it:  ttt-bench status {out}\n"
        f"  to cancel it:  ttt-bench status {out} --cancel\n"
        f"  its script:    {out / SCRIPT}"
    )


def asked_of_slurm(request: RunRequest) -> tuple[slurm.SlurmRequest, RunRequest]:
    """What `--slurm` wants, and the request: tasks with GPUs run on them, whatever this machine has."""
    wanted = slurm.parsed(request.slurm or "")
    on_gpus = wanted.gpu and request.device == "auto"
    return wanted, request.model_copy(update={"device": "cuda"}) if on_gpus else request


def _command(request: RunRequest, out: Path) -> list[str]:
    """What each task runs: of the run, which earlier calls may have planned more of, the cases that are asked for.

    By this code (-P): what lies in the folder where a task begins must not stand in for it.
    """
    here = [f"{name}={value}" for name, value in path_of_code(os.environ).items()]
    command = ["env", *here, sys.executable, "-P", "-m", "bench", "work", str(out), "--keys", str(out / KEYS)]
    if request.checkpoint:
        command += ["--checkpoint", str(request.checkpoint.resolve())]
    return [*command, "--retry", request.retry, "--time-limit", f"{request.time_limit_s:g}"]


def work(request: RunRequest, out: Path, keys: Path | None) -> None:
    """Be one task: run the jobs of `out` that no other task has, of them the cases whose keys a file has."""
    open_checkpoint(request.checkpoint)
    holder = Holder.here()
    if not holder.array:
        raise UserError("work: is what a task of Slurm runs, and SLURM_JOB_ID is not set; see `ttt-bench run --slurm`")
    run = Run.open(out)
    jobs = _jobs(run, keys)
    device = run.file.device
    machine = snapshot("cpu" if device == "cpu" else "")  # a node may have a GPU that the run is not of
    if machine["device_kind"] != device:
        raise UserError(f"{out}: is a run of a GPU, and none was found on this task's node; ask for gpus=N by --slurm")
    known = launches(device)
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
                    limits=request.limits,
                    retry=retry_of(run, request.retry),
                    skip=lambda planned, earlier: (
                        failed_install(known[planned.case.system, planned.case.backend])
                        or skip_reason(planned, earlier, memory_bytes)
                    ),
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
