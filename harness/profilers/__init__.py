"""Readers of what profilers write: PyTorch's Kineto, Nsight Systems and Nsight Compute."""
