"""How is Mamba run by vLLM, on vLLM's own scan and state cache?"""

from typing import Any

from bench.models.config import CONV_KERNEL, MambaConfig, model_config
from bench.systems.vllm_system import VllmSystem


class VllmMamba(VllmSystem):
    """mamba/vllm."""

    architecture = "MambaForCausalLM"
    max_num_batched_tokens = 16384

    def config(self, size: str) -> MambaConfig:
        """The repository's Mamba."""
        config = model_config("mamba", size)
        assert isinstance(config, MambaConfig)
        return config

    def hugging_face(self, config: MambaConfig, length: int) -> dict[str, Any]:
        """Mamba's configuration of the same function."""
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

    def cache_bytes(self, config: MambaConfig, context: int) -> int:
        """State and convolution window of 2 bytes a number, whatever the context."""
        return 2 * config.layers * config.inner_width * (config.state_dim + CONV_KERNEL - 1)
