"""Shared code of both operators' generate kernels: state precisions, Triton helpers, launch settings."""
