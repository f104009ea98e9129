"""Run a TTT model in vLLM: the plug-in `bench.serving` calls the kernels of `tk_kernels`."""

from importlib import import_module
from typing import Any

import torch

from bench import serving
from bench.models.case_model import ttt_config_of
from bench.models.config import TTTConfig
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
    max_num_batched_tokens = 32768  # the chunk size of `TTTModel.prefill`

    def unavailable(self) -> str:
        return super().unavailable() or common.available()

    def hugging_face(self, config: TTTConfig, length: int) -> dict[str, Any]:
        return config_values(config)

    def register(self) -> None:
        # The plug-in keeps a class that is registered already, so an installed plug-in does not replace this one.
        serving.register()
        super().register()

    def settings(self, case: Case) -> dict[str, str]:
        config = ttt_config_of(case)
        ops = import_module(f"tk_kernels.ttt_{config.learner}.ops")
        q = torch.empty(1, 1, 1, config.head_dim, dtype=getattr(torch, case.dtype), device=device())
        own = {"cache_dtype": case.state_dtype}  # to vLLM, the cache is bytes (int8)
        return super().settings(case) | own | {"forward_kernel": ops.choice(q, config.mini_batch)}

    def last_logits(self, reference: Any, ids: torch.Tensor, last: int) -> torch.Tensor:
        if not isinstance(reference.operator, ReplayedOperator):
            reference.operator = ReplayedOperator(reference.config.learner)
        return super().last_logits(reference, ids, last)
