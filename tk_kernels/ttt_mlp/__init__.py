"""TTT-MLP: the PyTorch `reference`; `ops` (forward) and `generate` run the kernels."""
