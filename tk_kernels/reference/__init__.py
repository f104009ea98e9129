"""Both operators in PyTorch: `naive` defines them, `learner` has all their forms, `layer` has the parts around f."""
