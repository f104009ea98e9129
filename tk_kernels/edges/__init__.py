"""Kernels for a TTT block's other operations: short convolutions, norms, output gates, SwiGLU, GEMMs."""
