"""TTT-Linear: `reference` is the fast PyTorch form for tests; `ops` (forward) and `generate` run the kernels."""
