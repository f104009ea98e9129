"""TTT-MLP: reference is the fast PyTorch form for tests, ops and generate run the kernels."""
