"""What the PyTorch references of both operators share: the layer around the learner, and how tokens are run."""
