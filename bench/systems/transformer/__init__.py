"""Adapter of the Transformer in plain PyTorch."""
