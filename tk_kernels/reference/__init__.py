"""Both operators in PyTorch: `naive` defines them, `learner` computes all their forms, `layer` has the parts around f."""
