"""What the generate kernels of both operators share: precisions, kernel helpers, launch settings and their tuning."""
