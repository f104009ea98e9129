"""Kernels around a block's learner: short convolutions, norms, output gates, SwiGLU, GEMMs."""
