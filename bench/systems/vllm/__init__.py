"""Transformer and Mamba in vLLM, which times its own steps."""
