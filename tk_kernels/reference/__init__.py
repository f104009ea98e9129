"""Both operators in PyTorch: `naive` defines them, `learner` is the fast reference."""
