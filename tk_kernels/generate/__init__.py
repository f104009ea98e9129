"""Shared code of the generate kernels: state precisions, Triton helpers, launch settings."""
