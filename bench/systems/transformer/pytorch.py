"""Run this repository's Llama-shaped Transformer on SDPA and a KV cache."""

from collections.abc import Collection
from typing import Any, ClassVar

import torch

from bench.systems.language_model import LanguageModel
from bench.systems.phases import Generate, Logits, LogitsAfter, PhaseWork
from harness.schema.case import Case


class TransformerGenerate(Generate):
    """Timed generate; each call starts at position `context` of a random KV cache."""

    def prepare(self) -> None:
        super().prepare()
        self.settings = {}  # no prompt_tokens: steps start at position `context`
        self.state.cache.normal_()  # random keys and values

    def restart(self) -> None:
        """Do nothing, because `run` sets the position."""

    @torch.inference_mode()
    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.state.position.fill_(self.case.context)
        return super().run()

    def new_past(self, rows: list[int], sources: list[int]) -> LogitsAfter:
        cache = self.state.cache.normal_()  # [layers, 2, B, KV heads, capacity, D]
        for row, source in enumerate(sources):  # one at a time, because a cache can fill half of the memory
            cache[:, :, row] = cache[:, :, source]
        initial = cache[:, :, rows].clone()

        def logits_after(model: Any, some: list[int], tokens: torch.Tensor, numbers: Collection[int]) -> Logits:
            state = model.init_state(len(some), initial.shape[4])
            state.cache[..., : initial.shape[4], :] = initial
            state.position.fill_(self.case.context)
            logits = [model.generate_step(ids, state)[0] for ids in tokens]
            return {n: logits[n - 1] for n in numbers}

        return logits_after


class TorchTransformer(LanguageModel):
    """Adapter of the systems transformer/torch and transformer-gqa/torch."""

    phases: ClassVar[dict[str, type[PhaseWork]]] = LanguageModel.phases | {"generate": TransformerGenerate}

    def settings(self, case: Case) -> dict[str, str]:
        return {**super().settings(case), "attention": "SDPA's choice"}
