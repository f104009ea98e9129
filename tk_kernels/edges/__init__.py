"""Kernels for the rest of a TTT block: convolutions, norms, output gates, SwiGLU, GEMMs."""
