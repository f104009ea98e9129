"""Find vLLM settings that the plug-in does not support; imports neither torch nor vLLM."""

import os
from typing import Any

BREAKABLE = "VLLM_USE_BREAKABLE_CUDAGRAPH"
RELEASES = ("0.33", "0.33")  # oldest and newest minor release of vLLM that was tried


def unsupported_setting(vllm_config: Any, mini_batch: int) -> str:
    """Return an error message for the first unsupported setting; "" if all are supported."""
    model, parallel, cache = vllm_config.model_config, vllm_config.parallel_config, vllm_config.cache_config
    dtype = str(model.dtype).removeprefix("torch.")
    for kind in ("tensor", "pipeline"):
        if (size := getattr(parallel, f"{kind}_parallel_size")) > 1:
            return f"--{kind}-parallel-size {size}: a TTT model is served on one GPU; use 1"
    if cache.enable_prefix_caching and (size := cache.block_size) % mini_batch:
        return f"--block-size {size}: the prefix cache needs a multiple of the mini-batch, {mini_batch}"
    if cache.enable_prefix_caching and (size := cache.mamba_block_size) != cache.block_size:
        return f"--mamba-block-size {size}: vLLM needs the value of --block-size, {cache.block_size}; leave it out"
    if model.hf_overrides:
        return "--hf-overrides: TTT models read only config.json; edit this file"
    if vllm_config.speculative_config is not None:
        return "--speculative-config: a TTT model's state cannot drop rejected tokens; leave it out"
    if vllm_config.lora_config is not None:
        return "--enable-lora: TTT models have no LoRA layers; leave it out"
    if model.quantization:
        return f"--quantization {model.quantization}: TTT models are served in the checkpoint's dtype; leave it out"
    if dtype != "bfloat16":
        return f"--dtype {dtype}: TTT models are served in bfloat16; use bfloat16"
    if not vllm_config.use_v2_model_runner:  # V1 replays a graph of generate steps for a new prompt of one token
        return "TTT models need model runner V2; leave out VLLM_USE_V2_MODEL_RUNNER=0 and what vLLM's log says V2 lacks"
    if os.environ.get(BREAKABLE, "0") != "0":  # a graph of prompts would replay the requests of its capture
        return f"{BREAKABLE}=1: vLLM cannot capture a TTT model's steps with prompts; leave it out"
    return ""
