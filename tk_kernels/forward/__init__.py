"""Shared code of the forward kernels of both operators: argument checks, and common.cuh for the .cu files."""
