"""Both operators in PyTorch: `naive` defines them, `learner` is fast, `layer` surrounds f."""
