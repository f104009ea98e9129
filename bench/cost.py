"""FLOPs and bytes that a language model's work takes at the least.

A multiply-add is two FLOPs. Every weight multiplies every token once (2 FLOPs a parameter and token: Kaplan et al.,
arXiv 2001.08361, section 2.1), but for the embedding, whose matrix multiplies the last token of a prompt alone where it
is the head, and for a learner's initial weights, from which a prompt begins. What mixes tokens is added: causal
attention (two products of T^2 / 2 pairs), Mamba's scan (arXiv 2312.00752, equation 2: the new state and its output, 6 a
number of the state), a delta rule token by token (7 a number of Gated DeltaNet's state and 9 of RWKV-7's:
`bench.systems.fla.models`), TTT's inner loop (`tk_kernels.ttt_linear.cost`, `tk_kernels.ttt_mlp.cost`: in a forward
with the products within a mini-batch whole, as matrix units compute them, 4 to 14% of it more than their triangles).
Bytes are those of the weights, each read once a call or step, of token ids, and of the state or cache and the last
inputs of convolutions, read and written; activations, which a fused kernel need not write, are not counted.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from bench.kept import ELEMENT_BYTES, generate_precision, state_element_bytes, window_bytes
from bench.models.config import CONV_KERNEL, DeltaRuleConfig, MambaConfig, TransformerConfig, TTTConfig
from harness.schema.case import Case
from harness.schema.work import EDGES, HEAD, OTHER, PRODUCTS, SCAN, TTT, Work

ID_BYTES = 8
LEARNER_BYTES = 4  # of a number of a learner's initial weights, in whatever dtype the model is


def model_work(config: Any, parameters: int, case: Case, form: str = "dual") -> dict[str, Work]:
    """One unit of a case by the parts of a profile: a forward, a step of generate for the whole batch, or a request.

    config: one of `bench.models.config`, or whatever has a `width` and a `vocabulary`; what mixes tokens in the latter
    is not counted, and is no part. form: of TTT's generate step. What joins the parts moves activations alone, which
    a fused kernel need not write: it takes nothing at the least.
    """
    if case.phase == "forward":
        return _forward(config, parameters, case)
    if case.phase == "generate":
        return _step(config, parameters, case, form)
    steps = case.new_tokens
    midway = replace(case, context=case.context + steps // 2)  # a cache grows as it is read
    prompt, step = _forward(config, parameters, case), _step(config, parameters, midway, form)
    return {part: prompt[part] + step[part] * steps for part in prompt}


def total(parts: Mapping[str, Work]) -> Work:
    """The work of all parts together."""
    return sum(parts.values(), Work(0, 0))


def _forward(config: Any, parameters: int, case: Case) -> dict[str, Work]:
    found = _parts(config, parameters, case, _mixed_prompt(config, case), case.batch * case.context)
    found[EDGES] += _windows(config, case)
    return found


def _step(config: Any, parameters: int, case: Case, form: str) -> dict[str, Work]:
    found = _parts(config, parameters, case, _mixed_step(config, case, form), case.batch)
    found[EDGES] += _windows(config, case, read=True)
    return found


def _parts(config: Any, parameters: int, case: Case, mixed: Work | None, tokens: int) -> dict[str, Work]:
    """Parts of a call that reads `tokens` tokens and answers with the logits of one for each sequence."""
    table, tables = config.vocabulary * config.width, 1 if getattr(config, "tied", True) else 2
    weights, element = parameters - tables * table - _learner(config), ELEMENT_BYTES[case.dtype]
    found = {
        PRODUCTS: Work(2 * (weights - _decays(config)) * tokens, element * weights),
        HEAD: Work(2 * case.batch * table, element * table),
        EDGES: Work(0, 0),
        OTHER: Work(0, ID_BYTES * tokens),
    }
    if mixed is not None:
        found[TTT if isinstance(config, TTTConfig) else SCAN] = mixed
    return found


def _windows(config: Any, case: Case, read: bool = False) -> Work:
    """The last inputs of convolutions: written after a prompt; where read, a step replaces the oldest."""
    if not isinstance(config, MambaConfig | DeltaRuleConfig | TTTConfig):
        return Work(0, 0)
    kept = case.batch * window_bytes(config, ELEMENT_BYTES[case.dtype])
    return Work(0, kept * CONV_KERNEL // (CONV_KERNEL - 1) if read else kept)


def _learner(config: Any) -> int:
    """Initial weights of the learners, which multiply nothing: each sequence has its own."""
    if not isinstance(config, TTTConfig):
        return 0
    return config.layers * sum(heads * rows * columns for heads, rows, columns in config.weight_shapes.values())


def _decays(config: Any) -> int:
    """Mamba's decays, one a number of the state: what multiplies by them is counted with the scan."""
    return config.layers * config.state_numbers if isinstance(config, MambaConfig) and not config.groups else 0


def _mixed_prompt(config: Any, case: Case) -> Work | None:
    """What mixes the tokens of a prompt, in all layers, and the state that it writes; None where it is not known."""
    batch, tokens = case.batch, case.context
    if isinstance(config, TransformerConfig):
        layer = Work(
            2 * batch * tokens**2 * config.width, 2 * batch * tokens * config.kv_width * state_element_bytes(case)
        )
    elif isinstance(config, MambaConfig | DeltaRuleConfig):
        state = batch * config.state_numbers
        layer = Work(config.token_flops * tokens * state, state * state_element_bytes(case))
    elif isinstance(config, TTTConfig):
        cost = import_module(f"tk_kernels.ttt_{config.learner}.cost")
        shape = (config.heads, config.head_dim)
        layer = Work(
            cost.forward_flops(batch, tokens, *shape, config.mini_batch),
            cost.state_bytes(batch, *shape, state_element_bytes(case)),
        )
        return layer * config.layers + Work(0, LEARNER_BYTES * _learner(config))
    else:
        return None
    return layer * config.layers


def _mixed_step(config: Any, case: Case, form: str) -> Work | None:
    """What mixes a token with those before it, in all layers, and the state that is read and written; None: unknown."""
    batch, context = case.batch, case.context
    if isinstance(config, TransformerConfig):
        cache = 2 * batch * context * config.kv_width
        layer = Work(4 * batch * context * config.width, cache * state_element_bytes(case))
    elif isinstance(config, MambaConfig | DeltaRuleConfig):
        state = batch * config.state_numbers
        layer = Work(config.token_flops * state, 2 * state * state_element_bytes(case))
    elif isinstance(config, TTTConfig):
        cost = import_module(f"tk_kernels.ttt_{config.learner}.cost")
        shape = (batch, config.heads, config.head_dim, config.mini_batch, form)
        precision, rows = generate_precision(case)
        moved = cost.generate_state_traffic(*shape, precision, row_element_bytes=rows)
        layer = Work(cost.generate_flops(*shape), moved)
    else:
        return None
    return layer * config.layers
