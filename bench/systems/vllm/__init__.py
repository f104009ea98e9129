"""Adapters of the Transformer, Mamba and TTT models in vLLM, whose engine's own steps are timed."""
