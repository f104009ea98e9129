"""Mamba and Mamba-2: the package mamba-ssm, plain PyTorch, and a scan that both are checked against."""
