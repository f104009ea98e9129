"""A task of a run of fake systems: python slurm_task.py RUN."""

import sys
from pathlib import Path

from pool_helpers import launches

from harness.claims import Holder
from harness.run import Run
from harness.task import run_task

if __name__ == "__main__":
    run = Run.open(Path(sys.argv[1]))
    print(run_task(run, launches(*(job.system for job in run.jobs)), Holder.here(), jobs=run.jobs))
