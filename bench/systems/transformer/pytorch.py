"""Run this repository's Llama-shaped Transformer on SDPA and a KV cache."""

from typing import Any

import torch

from bench.models.case_model import config_of
from bench.models.transformer import Sdpa, Transformer, TransformerState
from bench.systems.language_model import LanguageModel
from bench.systems.on_device import device
from harness.schema.case import Case


class TorchTransformer(LanguageModel):
    """Adapter of transformer/torch and transformer-gqa/torch."""

    prompt_tokens = None

    def settings(self, case: Case) -> dict[str, str]:
        return {**super().settings(case), "attention": "SDPA's choice"}

    def load(self, case: Case) -> Any:
        return Transformer.from_seed(config_of(case), 0, device(), getattr(torch, case.dtype), attend=self.attend())

    def attend(self) -> Sdpa:
        """Return the attention of the model."""
        return Sdpa()

    def set_position(self, state: TransformerState, context: int) -> None:
        state.position.fill_(context)

    def fill_past(self, state: TransformerState) -> None:
        # like normalised projections
        state.cache.normal_()

    def repeat_past(self, state: TransformerState, sources: list[int]) -> None:
        # one at a time, because a cache can fill half of the memory
        for row, source in enumerate(sources):
            state.cache[:, :, row] = state.cache[:, :, source]

    def restart(self, model: Any, state: TransformerState) -> None:
        """Do nothing, because `set_position` starts every call at the context."""

    def rows_of_state(self, state: TransformerState, rows: list[int]) -> torch.Tensor:
        """Return a copy of the sequences' KV cache: [layers, 2, rows, KV heads, capacity, D]."""
        return state.cache[:, :, rows].clone()

    def expected_logits(
        self, reference: Any, begun: torch.Tensor, calls: list[torch.Tensor], case: Case
    ) -> torch.Tensor:
        """Return the reference's logits [rows, V] after the last of `calls`.

        begun: the sequences' KV caches when that call began, after case.context tokens (`rows_of_state`).
        """
        state = reference.init_state(begun.shape[2], begun.shape[4])
        state.cache[..., : begun.shape[4], :] = begun
        self.set_position(state, case.context)
        for ids in calls[-1]:
            logits, _ = reference.generate_step(ids, state)
        return logits
