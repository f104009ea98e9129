"""Run the Llama-shaped Transformer in vLLM, with FlashAttention 3 on Hopper and no silent fallback."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from bench.models.config import TransformerConfig, model_config
from bench.models.layers import NORM_EPS
from bench.systems.blockwise import transformer_logits
from bench.systems.on_device import device
from bench.systems.vllm.engine import Engine
from bench.systems.vllm.system import VllmSystem
from harness.schema.case import Case

# FlashAttention's version by the GPU's major compute capability, as vLLM's wheel has it.
BEST_VERSION = {9: "3", 10: "4"}


class VllmTransformer(VllmSystem):
    """transformer/vllm; a panel's option `attention` (FLASH_ATTN-2, TRITON_ATTN, ...) asks for another attention."""

    model: ClassVar[str] = "transformer"

    implementation = "vllm.model_executor.models.llama:LlamaForCausalLM"
    # The best of the suite vllm-settings, one H100. Forward, B = 16, ms at 2k, 8k and 32k tokens: blocks of 128 tokens
    # and steps of 32,768 168.8, 808 and 5,713; blocks of 16 170.6, 843 and 6,049. Shorter steps are slower: blocks of
    # 16, at 2k and 8k, steps of 8,192 170.2 and 862, of 16,384 167.6 and 849, of 32,768 166.0 and 848. Generate after
    # 512, 1,024 and 2,048 tokens, us a token: blocks of 16 44.0, 77.7 and 150.2, of 128 42.9, 80.6 and 148.5; graphs at
    # powers of two 43.9, 79.9 and 150.2. On another H100, blocks of 16, Triton's attention 43.9, 81.1 and 157.6,
    # FlashInfer's 44.4, 80.0 and 155.3.
    # Graphs of prompts change little where the host is fast (at 2k, B = 1, 2, 4 and 16, 12.8, 23.6, 44.1 and 168.9 ms
    # with them, 12.6, 23.0, 44.3 and 168.7 without); where it is slow one prompt of 2k took 15 to 23 ms without. A
    # request goes without, as its steps need their keys divided.
    max_num_batched_tokens = 32768
    block_sizes: ClassVar[Mapping[str, int]] = {"forward": 128, "request": 128, "generate": 16}
    graphs: ClassVar[Mapping[str, str]] = {"forward": "prompts"}

    def config(self, size: str) -> TransformerConfig:
        """The repository's Transformer."""
        config = model_config(self.model, size)
        assert isinstance(config, TransformerConfig)
        return config

    def hugging_face(self, config: TransformerConfig, length: int) -> dict[str, Any]:
        """Llama's configuration of the same function."""
        return {
            "architectures": [self.architecture],
            "model_type": "llama",
            "hidden_size": config.width,
            "intermediate_size": config.ffn_width,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "num_key_value_heads": config.kv_heads,
            "head_dim": config.head_dim,
            "vocab_size": config.vocabulary,
            "max_position_embeddings": length,
            "rms_norm_eps": NORM_EPS,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
        }

    def cache_bytes(self, config: TransformerConfig, context: int) -> int:
        """Count a key and a value of 2 bytes for each channel of the KV heads, layer and token."""
        return 2 * 2 * config.kv_width * config.layers * max(1, context)

    def last_logits(self, reference: Any, ids: torch.Tensor, last: int) -> torch.Tensor:
        """See VllmSystem.last_logits."""
        return transformer_logits(reference, ids, last, torch.device(device()))

    def check(self, engine: Engine, case: Case) -> None:
        """Another attention than this GPU's best is an error unless it was asked for."""
        found = "-".join(engine.attention()).rstrip("-")
        asked = str(case.option("attention", ""))
        expected = asked or f"FLASH_ATTN-{BEST_VERSION.get(compute_capability(), '2')}"
        if not found.startswith(expected):
            raise RuntimeError(
                f"vLLM runs on {found}, expected {expected}; a suite's panel accepts it by the option attention"
            )


class VllmGroupedQueryTransformer(VllmTransformer):
    """transformer-gqa/vllm."""

    model = "transformer-gqa"


def compute_capability() -> int:
    """The GPU's major one."""
    return torch.cuda.get_device_capability()[0]
