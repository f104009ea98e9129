"""How is this repository's Llama-shaped Transformer run? scaled_dot_product_attention and a KV cache."""

from typing import Any

import torch

from bench.models.config import TransformerConfig, model_config
from bench.models.transformer import Transformer, TransformerState
from bench.systems.language_model import LanguageModel, device
from harness.case import Case


class TorchTransformer(LanguageModel):
    """transformer/torch."""

    prompt_tokens = None
    replays_prefill = True

    def load(self, case: Case) -> Any:
        """Random weights by seed."""
        config = model_config("transformer", case.size)
        assert isinstance(config, TransformerConfig)
        return Transformer.from_seed(config, 0, device(), getattr(torch, case.dtype))

    def place(self, state: TransformerState, context: int) -> None:
        """Zero keys and values stand for the past: attention reads as many bytes of them as of any others."""
        state.position.fill_(context)
