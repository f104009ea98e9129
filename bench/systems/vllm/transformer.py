"""Run the Llama-shaped Transformer in vLLM; check that vLLM uses the expected attention kernel."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.models.case_model import config_of
from bench.models.config import NORM_EPS, TransformerConfig
from bench.systems.needs import unsupported_release
from bench.systems.vllm.engine import Engine
from bench.systems.vllm.system import VllmSystem
from harness.measure.environment import output_of
from harness.schema.case import Case
from tk_kernels.build import find_nvcc

# FlashAttention's version that vLLM should choose, by the GPU's major compute capability; on others, version 2.
BEST_VERSION = {9: "3", 10: "4"}
# On Hopper, MANY sequences or more have Triton attention up to SHORT tokens, and FlashInfer after more: the fastest in
# the suite vllm-settings. Grouped queries need more sequences, because their steps stay CPU-bound longer.
MANY, SHORT = 64, 1024


class VllmTransformer(VllmSystem):
    """Adapter of the systems transformer/vllm and transformer-gqa/vllm.

    The option `attention`, such as FLASH_ATTN-2, selects an attention kernel.
    """

    implementation = "vllm.model_executor.models.llama:LlamaForCausalLM"
    max_num_batched_tokens = 32768

    def defaults(self, case: Case) -> dict[str, Any]:
        # Graphs of prompts turn off the splitting of keys, which generate steps need, so only forward has them.
        if case.phase == "forward":
            return {"graphs": "prompts", "block_size": 128}
        kernel = _for_many(case) if case.phase == "generate" else ""
        return {"block_size": 64, "attention": kernel} if kernel else {"block_size": 128}

    def hugging_face(self, config: TransformerConfig, length: int) -> dict[str, Any]:
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

    def check(self, engine: Engine, case: Case) -> None:
        used = "-".join(engine.attention()).rstrip("-")
        best = f"FLASH_ATTN-{BEST_VERSION.get(torch.cuda.get_device_capability()[0], '2')}"
        expected = engine.settings.attention or best
        if not used.startswith(expected):
            raise RuntimeError(
                f"vLLM uses {used}, expected {expected}; to accept it, set the option attention in the suite's panel"
            )


def _for_many(case: Case) -> str:
    """Return the attention kernel for many sequences on Hopper, or "" for FlashAttention."""
    config: Any = config_of(case)  # a TransformerConfig
    grouped = config.heads // config.kv_heads
    if case.batch < MANY * grouped or config.head_dim != 64 or torch.cuda.get_device_capability()[0] != 9:
        return ""  # 760m has a head dimension of 96, which FlashInfer lacks
    if case.context <= SHORT:
        return "TRITON_ATTN" if grouped == 1 else ""
    old = unsupported_release("vllm", "0.25", VllmSystem.releases[1])  # without FlashInfer's XQA kernel on Hopper
    return "FLASHINFER" if find_spec("flashinfer") and not old and _builds_flashinfer(find_nvcc()) else ""


@cache
def _builds_flashinfer(nvcc: Path | None) -> bool:
    """Return whether nvcc finds cuRAND and libcuda, which FlashInfer's kernels need and small CUDA installs lack."""
    if nvcc is None:
        return False
    with TemporaryDirectory() as folder:
        source = Path(folder) / "needs.cu"
        source.write_text("#include <curand_kernel.h>\n")
        _, failure = output_of([str(nvcc), "-shared", "-o", f"{source}.so", str(source), "-lcuda"])
        return not failure
