"""TTT-Linear and TTT-MLP in PyTorch: `naive` defines the functions, `learner` computes them fast."""
