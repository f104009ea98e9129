"""Submit runs to a real Slurm."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from harness_helpers import HERE, ROOT
from slurm_cluster import Cluster

from harness.schema import claims
from harness.schema.claims import Claims, Holder
from harness.schema.run import Run
from harness.workers import slurm


@contextmanager
def using(made: Cluster) -> Iterator[Callable[[Run], str]]:
    """Start the cluster and make this process's Slurm commands use it; yield a function that submits a run."""
    before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PYTHONPATH", "PATH")}
    os.environ["SLURM_CONF"] = made.env["SLURM_CONF"]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(HERE)])
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    made.env.update(os.environ)
    try:
        made.start()
        yield submit
    finally:
        made.stop()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def submit(run: Run, tasks: int = 4) -> str:
    """Submit a run as `ttt-bench run --slurm` does; return the id of the job array."""
    request = slurm.parsed(f"partition=gpu,gpus={tasks},mem=20")
    command = [sys.executable, str(HERE / "slurm_task.py"), str(run.folder)]
    script = run.folder / "a script.sbatch"
    script.write_text(slurm.script(request, tasks, command, str(HERE), str(run.folder / "task %a.log")))
    with run.held():
        array = slurm.submit(str(script))
        claims.note_submission(run.folder, array)
    return array


def claimed(run: Run, array: str) -> list[Holder]:
    found = (Claims(run.folder, array).holder(job.name) for job in run.jobs)
    return [holder for holder in found if holder]
