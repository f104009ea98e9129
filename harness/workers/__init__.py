"""Run cases in worker processes: protocol, process, scheduler, Slurm, progress."""
