"""Count the bytes stored per sequence: KV cache or recurrent state, and convolution inputs."""

from typing import Any

from bench.models.config import CONV_KERNEL, TransformerConfig, TTTConfig, convolved_channels
from harness.schema.case import Case
from tk_kernels.cost import COSTS, ELEMENT_BYTES


def state_bytes(config: Any, case: Case, form: str = "dual") -> int:
    """Return bytes stored per sequence of `case`: KV cache (at a request's end) or state, and convolution inputs.

    config: the model's configuration, of a class in `bench.models.config`.
    form: "dual" or "primal", for the generate state of a TTT model; otherwise ignored.
    """
    return mixer_state_bytes(config, case, form) + conv_state_bytes(config, ELEMENT_BYTES[case.dtype])


def mixer_state_bytes(config: Any, case: Case, form: str = "dual") -> int:
    """Return the bytes of one sequence's KV cache or state, over all layers; arguments as for `state_bytes`."""
    size = ELEMENT_BYTES[(case.state_dtype or case.dtype).removesuffix("-planes")]  # two planes of 16 bits are 4 bytes
    if isinstance(config, TransformerConfig):  # a key and a value per token and layer
        tokens = case.context + (case.new_tokens if case.phase == "request" else 0)
        return 2 * config.layers * config.kv_width * tokens * size
    if not isinstance(config, TTTConfig):
        return config.layers * config.state_elements * size
    cost, shape = COSTS[config.learner], (1, config.heads, config.head_dim)
    if case.phase == "forward":  # ends with a whole mini-batch, so the state caches no tokens
        return config.layers * cost.state_bytes(*shape, size)
    return config.layers * cost.generate_state_bytes(*shape, config.mini_batch, form, generate_precision(case))


def generate_precision(case: Case) -> str:
    """Return the key of `tk_kernels.generate.common.PRECISIONS` for `case.state_dtype`."""
    return (case.state_dtype or "float32").removeprefix("float32-")


def conv_state_bytes(config: Any, element_bytes: int) -> int:
    """Return the bytes of one sequence's stored convolution inputs, over all layers."""
    return config.layers * convolved_channels(config) * (CONV_KERNEL - 1) * element_bytes
