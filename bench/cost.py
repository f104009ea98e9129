"""FLOPs and bytes that a language model's work takes at the least: no sample can be shorter than they need.

A multiply-add is two FLOPs. Every weight multiplies every token once (2 FLOPs a parameter and token: Kaplan et al.,
arXiv 2001.08361, section 2.1), but for the embedding, whose matrix multiplies the last token of a prompt alone, as the
head, and for a learner's initial weights. What mixes tokens is added: causal attention (two products of T^2 / 2 pairs),
Mamba's scan (arXiv 2312.00752, equation 2: the new state and its output, 6 a number of the state), TTT's inner loop
(`tk_kernels.ttt_linear.cost`, `tk_kernels.ttt_mlp.cost`). Bytes are those of the weights, each read once a call or
step, of token ids, and of the state or cache, read and written; activations, which a fused kernel need not write, are
not counted.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bench.models.config import MambaConfig, TransformerConfig, TTTConfig
from harness.case import Case

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ID_BYTES = 8
# How `tk_kernels.traffic` calls the state_dtype of a case.
PLANES = {"float32-planes": "planes"}


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of one unit of a case."""

    flops: float
    bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, times: int) -> "Work":
        return Work(self.flops * times, self.bytes * times)

    def metrics(self) -> dict[str, float | None]:
        """As a record has them."""
        return {"flops": self.flops, "bytes": self.bytes}


def model_work(config: Any, parameters: int, case: Case, form: str = "dual") -> Work:
    """One unit of a case: a forward, a step of generate for `case.batch` sequences, or a request.

    config: one of `bench.models.config`, or whatever has a `width` and a `vocabulary`; what mixes tokens in the latter
    is not counted. form: of TTT's generate step.
    """
    if case.phase == "forward":
        return _forward(config, parameters, case)
    if case.phase == "generate":
        return _step(config, parameters, case, form)
    return _forward(config, parameters, case) + _step(config, parameters, case, form) * int(case.option("steps", 128))


def _forward(config: Any, parameters: int, case: Case) -> Work:
    batch, tokens = case.batch, case.context
    embedding = config.vocabulary * config.width
    products = parameters - embedding - _learner(config)
    mixed = _mixed_prompt(config, case)
    return Work(
        2 * batch * (products * tokens + embedding) + mixed.flops,
        parameters * ELEMENT_BYTES[case.dtype] + ID_BYTES * batch * tokens + mixed.bytes,
    )


def _step(config: Any, parameters: int, case: Case, form: str) -> Work:
    mixed = _mixed_step(config, case, form)
    return Work(
        2 * case.batch * (parameters - _learner(config)) + mixed.flops,
        parameters * ELEMENT_BYTES[case.dtype] + ID_BYTES * case.batch + mixed.bytes,
    )


def _learner(config: Any) -> int:
    """Initial weights of the learners, which multiply nothing: each sequence has its own."""
    if not isinstance(config, TTTConfig):
        return 0
    return config.layers * sum(heads * rows * columns for heads, rows, columns in config.weight_shapes.values())


def _mixed_prompt(config: Any, case: Case) -> Work:
    """What mixes the tokens of a prompt, in all layers, and the state that it writes."""
    batch, tokens = case.batch, case.context
    if isinstance(config, TransformerConfig):
        layer = Work(2 * batch * tokens**2 * config.width, 2 * batch * tokens * config.width * _state_bytes(case))
    elif isinstance(config, MambaConfig):
        state = config.inner_width * config.state_dim
        layer = Work(6 * batch * tokens * state, batch * state * _state_bytes(case))
    elif isinstance(config, TTTConfig):
        cost = import_module(f"tk_kernels.ttt_{config.learner}.cost")
        shape = (config.heads, config.head_dim)
        layer = Work(
            cost.forward_flops(batch, tokens, *shape, config.mini_batch),
            cost.state_bytes(batch, *shape, _state_bytes(case)),
        )
    else:
        return Work(0, 0)
    return layer * config.layers


def _mixed_step(config: Any, case: Case, form: str) -> Work:
    """What mixes a token with those before it, in all layers, and the state that is read and written for it."""
    batch, context = case.batch, case.context
    if isinstance(config, TransformerConfig):
        layer = Work(4 * batch * context * config.width, 2 * batch * context * config.width * _state_bytes(case))
    elif isinstance(config, MambaConfig):
        state = config.inner_width * config.state_dim
        layer = Work(6 * batch * state, 2 * batch * state * _state_bytes(case))
    elif isinstance(config, TTTConfig):
        cost = import_module(f"tk_kernels.ttt_{config.learner}.cost")
        shape = (batch, config.heads, config.head_dim, config.mini_batch, form)
        asked = case.state_dtype or "float32"
        rows = 4 if asked == "float32" else 2
        precision = PLANES.get(asked, asked)
        layer = Work(cost.generate_flops(*shape), cost.generate_bytes(*shape, precision, row_element_bytes=rows))
    else:
        return Work(0, 0)
    return layer * config.layers


def _state_bytes(case: Case) -> int:
    return ELEMENT_BYTES[(case.state_dtype or case.dtype).removesuffix("-planes")]
