"""Sentences on vLLM settings that the plug-in refuses. Imports neither torch nor vLLM."""

VERSIONS = ("0.33",)  # major and minor of the vLLM releases that were tried


def untried(version: str) -> str:
    """Return why this version of vLLM is refused; "" if the plug-in was tried with its release."""
    if version.split("+")[0].rpartition(".")[0] in VERSIONS:
        return ""
    return f"vLLM {version}: TTT models were tried with {', '.join(f'{v}.x' for v in VERSIONS)}; install one of these"


def refused(
    mini_batch: int,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    block_size: int | None = None,
    speculative: bool = False,
    lora: bool = False,
    quantization: str | None = None,
    dtype: str = "bfloat16",
    v1_model_runner: bool = False,
) -> str:
    """Return why an engine with these settings is refused; "" if all are supported.

    mini_batch: tokens of the model's mini-batch. block_size: tokens of a prefix cache's block; None without that cache.
    """
    if tensor_parallel > 1:
        return f"--tensor-parallel-size {tensor_parallel}: a TTT model is served on one GPU; give 1"
    if pipeline_parallel > 1:
        return f"--pipeline-parallel-size {pipeline_parallel}: a TTT model is served on one GPU; give 1"
    if block_size is not None and block_size % mini_batch:
        return f"--block-size {block_size}: the prefix cache needs a multiple of the mini-batch, {mini_batch}"
    if speculative:
        return "--speculative-config: a TTT model's state cannot go back by rejected tokens; leave it out"
    if lora:
        return "--enable-lora: TTT models have no LoRA layers; leave it out"
    if quantization:
        return f"--quantization {quantization}: TTT models are served in the checkpoint's dtype; leave it out"
    if dtype != "bfloat16":
        return f"--dtype {dtype}: TTT models are served in bfloat16; give bfloat16"
    if v1_model_runner:  # it replays a graph of generate steps for a new prompt of one token
        return "VLLM_USE_V2_MODEL_RUNNER=0: TTT models are served by vLLM's model runner V2; leave it out"
    return ""
