"""TTT-MLP: naive defines it, reference computes it fast enough to test with, ops and generate run the kernels.

Nothing is imported here, so that `cost` can be read where there is no torch.
"""
