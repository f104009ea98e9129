"""Adapters of the Transformer, Mamba and TTT models in vLLM."""
