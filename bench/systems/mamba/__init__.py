"""Adapters of Mamba and Mamba-2: mamba-ssm, plain PyTorch, and their reference scan."""
