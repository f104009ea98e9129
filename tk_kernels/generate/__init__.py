"""Shared code of the generate kernels: precisions, kernel helpers, launch settings and their tuning."""
