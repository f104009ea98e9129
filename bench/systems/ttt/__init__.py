"""Adapters of TTT-Linear and TTT-MLP: on the project's kernels, in plain PyTorch and by torch.compile."""
