"""Adapters of Mamba and Mamba-2: in mamba-ssm and in plain PyTorch, and the scan that is their reference."""
