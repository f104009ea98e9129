"""Shared code of the forward kernels: checks, Triton helpers, headers for .cu files."""
