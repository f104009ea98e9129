"""Adapters of TTT-Linear and TTT-MLP: the project's kernels, and plain PyTorch."""
