"""Adapters of mamba-ssm's Mamba 1 to 3 and transformers' Mamba; a PyTorch reference scan."""
