"""Run Mamba in vLLM, on vLLM's own scan and state cache."""

from typing import Any

import torch

from bench.models.config import CONV_KERNEL, MambaConfig
from bench.systems.mamba.scan import ScannedMamba
from bench.systems.on_device import device
from bench.systems.vllm.system import VllmSystem


class VllmMamba(VllmSystem):
    """Adapter of mamba/vllm."""

    implementation = "vllm.model_executor.models.mamba:MambaForCausalLM"
    steps_grow = False
    max_num_batched_tokens = 16384

    def hugging_face(self, config: MambaConfig, length: int) -> dict[str, Any]:
        return {
            "architectures": [self.architecture],
            "model_type": "mamba",
            "hidden_size": config.width,
            "intermediate_size": config.inner_width,
            "num_hidden_layers": config.layers,
            "state_size": config.state_dim,
            "expand": config.expand,
            "conv_kernel": CONV_KERNEL,
            "time_step_rank": config.time_step_rank,
            "vocab_size": config.vocabulary,
            "layer_norm_epsilon": 1e-5,
            "use_bias": False,
            "use_conv_bias": True,
            "hidden_act": "silu",
            "residual_in_fp32": True,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }

    def last_logits(self, reference: Any, ids: torch.Tensor, last: int) -> torch.Tensor:
        return ScannedMamba(reference.inner, device()).logits(ids, last)
