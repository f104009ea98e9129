"""Adapters of flash-linear-attention: TTT-Linear, Gated DeltaNet, RWKV-7 and related layers."""
