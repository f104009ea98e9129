"""Kernels for the parts of a TTT block around its learner: short convolutions, norms, output gates, SwiGLU, GEMMs."""
