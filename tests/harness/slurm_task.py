"""Work on a run of fake systems as one Slurm task: python slurm_task.py RUN."""

import sys
from pathlib import Path

from pool_helpers import worker_launches

from harness.schema.run import Run
from harness.workers.scheduler import Options
from harness.workers.slurm import Task, run_task

if __name__ == "__main__":
    run = Run.open(Path(sys.argv[1]))
    task = Task.here()
    assert task is not None
    print(run_task(run, worker_launches(*(job.system for job in run.jobs)), task, Options()))
