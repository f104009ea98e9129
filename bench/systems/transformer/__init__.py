"""The Transformer: plain PyTorch, and PyTorch with one attention kernel."""
