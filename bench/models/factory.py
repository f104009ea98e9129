"""Build a model from its configuration and a seed."""

from typing import Any

import torch

from bench.models.base import CausalLM
from bench.models.config import MambaConfig, ModelConfig, TransformerConfig
from bench.models.layers import fill_with_initial_weights
from bench.models.transformer import Transformer
from bench.models.ttt import TTTModel


def model_class(config: ModelConfig) -> type[CausalLM]:
    """Return the class that implements a configuration."""
    if isinstance(config, TransformerConfig):
        return Transformer
    if isinstance(config, MambaConfig):
        from bench.models.mamba import Mamba  # imports transformers, which is slow

        return Mamba
    return TTTModel


def default_dtype(device: torch.device | str) -> torch.dtype:
    """Return bfloat16 for a GPU, float32 for a CPU."""
    return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32


def from_seed(
    config: ModelConfig, seed: int, device: torch.device | str, dtype: torch.dtype | None = None, **options: Any
) -> CausalLM:
    """Build a model with random weights; a seed gives different weights on CPU and GPU.

    dtype: by default `default_dtype(device)`. options: arguments of the class, such as operator; unused for Mamba.
    """
    kind, dtype = model_class(config), dtype or default_dtype(device)
    if isinstance(config, MambaConfig):  # its package draws the weights
        return kind(config, device, dtype, seed=seed)
    model = kind(config, device, dtype, **options)
    fill_with_initial_weights(model, torch.Generator(model.head.device).manual_seed(seed))
    return model
