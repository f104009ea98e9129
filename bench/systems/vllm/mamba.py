"""Run Mamba in vLLM, on vLLM's own scan and state cache."""

from typing import Any

import torch

from bench.models.config import MambaConfig
from bench.systems.mamba.scan import ScannedMamba
from bench.systems.on_device import device
from bench.systems.vllm.system import VllmSystem


class VllmMamba(VllmSystem):
    """Adapter of the system mamba/vllm."""

    implementation = "vllm.model_executor.models.mamba:MambaForCausalLM"
    steps_grow = False
    max_num_batched_tokens = 16384

    def hugging_face(self, config: MambaConfig, length: int) -> dict[str, Any]:
        from bench.models.mamba import transformers_config

        return transformers_config(config).to_dict() | {"architectures": [self.architecture], "dtype": "bfloat16"}

    def last_logits(self, reference: Any, ids: torch.Tensor, last: int) -> torch.Tensor:
        return ScannedMamba(reference.inner, device()).logits(ids, last)
