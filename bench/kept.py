"""Count the bytes of a sequence's state: KV cache or state, and the last inputs of its convolutions."""

from importlib import import_module
from typing import Any

from bench.models.config import CONV_KERNEL, MambaConfig, TransformerConfig, TTTConfig, convolved_channels
from harness.schema.case import Case

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_PRECISIONS = {"float32-planes": "planes"}


def kept_bytes(config: Any, case: Case, form: str = "dual") -> int:
    """Bytes of one sequence's state after `context` tokens. form: of TTT's generate.

    A forward of whole mini-batches leaves TTT's weights and no rows.
    """
    size, windows = state_element_bytes(case), window_bytes(config, ELEMENT_BYTES[case.dtype])
    if isinstance(config, TransformerConfig):  # a key and a value per token and layer
        return 2 * config.layers * config.kv_width * case.context * size
    if isinstance(config, MambaConfig):
        return config.layers * config.state_numbers * size + windows
    assert isinstance(config, TTTConfig)
    cost, shape = import_module(f"tk_kernels.ttt_{config.learner}.cost"), (1, config.heads, config.head_dim)
    if case.phase == "forward":
        return config.layers * cost.state_bytes(*shape, size) + windows
    precision, rows = generate_precision(case)
    layer = cost.generate_state_bytes(*shape, config.mini_batch, form, precision, row_element_bytes=rows)
    return config.layers * layer + windows


def generate_precision(case: Case) -> tuple[str, int]:
    """The precision that `tk_kernels.generate.traffic` uses for a case, and the bytes of an element of its rows."""
    dtype = case.state_dtype or "float32"
    return _PRECISIONS.get(dtype, dtype), 4 if dtype == "float32" else 2


def state_element_bytes(case: Case) -> int:
    """Bytes of an element of the state, in all its planes."""
    return ELEMENT_BYTES[(case.state_dtype or case.dtype).removesuffix("-planes")]


def window_bytes(config: Any, element_bytes: int) -> int:
    """Bytes of the last inputs of all convolutions of one sequence."""
    return config.layers * convolved_channels(config) * (CONV_KERNEL - 1) * element_bytes
