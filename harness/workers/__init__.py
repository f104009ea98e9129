"""Run cases in worker processes: on one GPU, on several GPUs of a host, or as Slurm tasks."""
