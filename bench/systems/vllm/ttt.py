"""Run a TTT model in vLLM: the plug-in `bench.serving` calls the kernels of `tk_kernels`."""

from dataclasses import replace
from importlib import import_module
from typing import Any

import torch

from bench import serving
from bench.models.case_model import ttt_config_of
from bench.models.config import TTTConfig, uncut
from bench.models.hugging_face import config_values
from bench.serving.refusals import RELEASES
from bench.systems.on_device import device
from bench.systems.ttt.replayed import ReplayedOperator
from bench.systems.vllm.system import VllmSystem
from harness.schema.case import Case
from tk_kernels.generate import common


class VllmTTT(VllmSystem):
    """Adapter of the systems ttt-linear/vllm and ttt-mlp/vllm."""

    packages = ("vllm", "triton", "apache-tvm-ffi")
    implementation = "bench.serving.model:TTTForCausalLM"
    releases = RELEASES
    steps_grow = False
    max_num_batched_tokens = 32768  # as many as a chunk of `TTTModel.prefill`

    def unavailable(self) -> str:
        return super().unavailable() or common.available()

    def hugging_face(self, config: TTTConfig, length: int) -> dict[str, Any]:
        return config_values(config)

    def register(self) -> None:
        # an installed plug-in, which vLLM loads later, does not replace the model's class
        serving.register()
        super().register()

    def _sequences(self, case: Case) -> int:
        whole = replace(case, size=uncut(case.size)[0])
        room = self._cache_bytes(whole, "prompts")  # the smallest cache, as a margin
        assert room is not None
        # Bounds vLLM's CUDA graphs, so at most the number of sequences whose states fit in vLLM's cache.
        return min(super()._sequences(case), max(1, room // self._kept_bytes(whole)))

    def settings(self, case: Case) -> dict[str, str]:
        config = ttt_config_of(case)
        ops = import_module(f"tk_kernels.ttt_{config.learner}.ops")
        q = torch.empty(1, 1, 1, config.head_dim, dtype=getattr(torch, case.dtype), device=device())
        return super().settings(case) | {"forward_kernel": ops.choice(q, config.mini_batch)}

    def last_logits(self, reference: Any, ids: torch.Tensor, last: int) -> torch.Tensor:
        if not isinstance(reference.operator, ReplayedOperator):
            reference.operator = ReplayedOperator(reference.config.learner)
        return super().last_logits(reference, ids, last)
