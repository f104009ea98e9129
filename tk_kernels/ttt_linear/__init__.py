"""What does TTT-Linear offer? `reference` defines it, `ops` runs its kernels, `cost` counts its work.

Nothing is imported here, so that `cost` can be read where there is no torch.
"""

__all__ = ["cost", "ops", "reference"]
