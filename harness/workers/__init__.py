"""Run cases in subprocesses: protocol, process, scheduler, Slurm, progress."""
