"""Shared code of the PyTorch references: the layer around the learner, and the learner in all forms."""
