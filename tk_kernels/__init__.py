"""Which operators are there? One folder each: `reference` (PyTorch), `ops` (kernels), `cost` (FLOPs and bytes)."""

__all__ = ["ttt_linear", "ttt_mlp"]
