"""Adapters of Mamba, Mamba-2 and Mamba-3 in mamba-ssm and of transformers' Mamba, and a reference scan in PyTorch."""
