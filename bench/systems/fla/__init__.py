"""flash-linear-attention: its TTT-Linear layer, Gated DeltaNet and RWKV-7."""
