"""Adapters of TTT-Linear and TTT-MLP: project kernels, plain PyTorch, torch.compile."""
