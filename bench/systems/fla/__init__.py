"""Adapters of flash-linear-attention: its TTT-Linear layer, Gated DeltaNet, RWKV-7, and layers of related models."""
