"""Kernels around the operators, each one pass over memory: short convolutions, norms, output gates."""
