"""Profile cases of a run, or a block of any script, with Nsight tools or Kineto."""
