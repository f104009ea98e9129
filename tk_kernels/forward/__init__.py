"""Shared code of both operators' forward kernels: argument checks, helpers in Triton, and headers for .cu files."""
