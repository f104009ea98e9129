"""TTT-Linear and TTT-MLP: the project's kernels, plain PyTorch and torch.compile."""
