"""Adapters of the Transformer: in plain PyTorch, and in PyTorch with FlashAttention."""
