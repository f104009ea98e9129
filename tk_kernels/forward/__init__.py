"""What the forward kernels of both operators share: argument checks, and common.cuh for the .cu files."""
