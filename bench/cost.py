"""Lower bounds on the FLOPs and bytes of a language model.

FLOPs, two per multiply-add:
- Each weight multiplies each token once (Kaplan et al., arXiv 2001.08361, section 2.1).
- Exceptions: the LM head multiplies only a sequence's last token, the embedding has no FLOPs, Mamba's A is in the scan.
- Causal attention: two GEMMs over T^2 / 2 pairs of tokens.
- Mamba's scan: 6 per token and element of the state (arXiv 2312.00752, equation 2); Mamba-2's: 5 (a decay per head).
- Delta rules: 7 per token and element of the state for Gated DeltaNet, 9 for RWKV-7 (`bench.systems.fla.models`).
- TTT's inner loop: `tk_kernels.cost` counts its GEMMs. The other items exclude its weights (W1, b1, ...).

Bytes: weights once per call or step, and token ids. A forward writes the state, KV cache and convolution inputs. A step
reads them, and writes the state and the newest inputs. Activations do not count: a fused kernel need not write them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.models.config import CONV_KERNEL, DeltaRuleConfig, MambaConfig, TransformerConfig, TTTConfig
from bench.state_size import conv_state_bytes, generate_precision, mixer_state_bytes
from harness.schema.case import Case
from harness.schema.work import EDGES, HEAD, OTHER, PRODUCTS, SCAN, TTT, Work
from tk_kernels.cost import COSTS, ELEMENT_BYTES

ID_BYTES = 8
LEARNER_BYTES = 4  # per element of TTT's initial weights: float32 in a model of any dtype, read only by a forward


def model_work(config: Any, parameters: int, case: Case, form: str = "dual") -> dict[str, Work]:
    """Return FLOPs and bytes of a forward, generate step or request, by part such as "head".

    config: the model's configuration, of a class in `bench.models.config`.
    parameters: the model's parameter count. form: "dual" or "primal", for TTT's generate step.
    """
    if case.phase != "request":
        return _work(config, parameters, case, form)
    steps = case.new_tokens
    midway = replace(case, context=case.context + steps // 2)  # the mean length of the growing cache
    phases = replace(case, phase="forward"), replace(midway, phase="generate")
    prompt, step = (_work(config, parameters, each, form) for each in phases)
    return {part: prompt[part] + step[part] * steps for part in prompt}


def total(parts: Mapping[str, Work]) -> Work:
    """Return the sum of the work of all parts."""
    return sum(parts.values(), Work(0, 0))


def _work(config: Any, parameters: int, case: Case, form: str) -> dict[str, Work]:
    is_step = case.phase == "generate"
    tokens = case.batch * (1 if is_step else case.context)
    table, tables = config.vocabulary * config.width, 1 if getattr(config, "tied", True) else 2
    weights, element = parameters - tables * table - _learner_elements(config), ELEMENT_BYTES[case.dtype]
    has_decays = isinstance(config, MambaConfig) and not config.groups  # Mamba's A, whose work counts with the scan
    multiplied = weights - (config.layers * config.state_elements if has_decays else 0)
    found = {
        PRODUCTS: Work(2 * multiplied * tokens, element * weights),
        HEAD: Work(2 * case.batch * table, element * table),
        EDGES: Work(0, 0),
        OTHER: Work(0, ID_BYTES * tokens),
    }
    if isinstance(config, MambaConfig | DeltaRuleConfig | TTTConfig):  # the convolutions' stored inputs
        inputs = case.batch * conv_state_bytes(config, element)
        # A prompt writes all; a step reads all and writes one per channel.
        found[EDGES] = Work(0, inputs * CONV_KERNEL // (CONV_KERNEL - 1) if is_step else inputs)
    if (mixed := _mixed(config, case, form)) is not None:
        found[TTT if isinstance(config, TTTConfig) else SCAN] = mixed
    return found


def _learner_elements(config: Any) -> int:
    if not isinstance(config, TTTConfig):
        return 0
    return config.layers * sum(heads * rows * columns for heads, rows, columns in config.weight_shapes.values())


def _mixed(config: Any, case: Case, form: str) -> Work | None:
    """Return the work of attention, scan or TTT's inner loop; None for an unknown config."""
    is_step, batch = case.phase == "generate", case.batch
    tokens = batch * (1 if is_step else case.context)
    if isinstance(config, TransformerConfig):
        flops = (4 if is_step else 2) * config.layers * tokens * case.context * config.width
        return Work(flops, batch * mixer_state_bytes(config, case))
    if isinstance(config, MambaConfig | DeltaRuleConfig):
        flops = config.token_flops * config.layers * tokens * config.state_elements
        return Work(flops, (2 if is_step else 1) * batch * mixer_state_bytes(config, case))
    if not isinstance(config, TTTConfig):
        return None
    cost, heads, dim, mini_batch = COSTS[config.learner], config.heads, config.head_dim, config.mini_batch
    if is_step:
        shape = (batch, heads, dim, mini_batch, form)
        moved = cost.generate_state_traffic(*shape, generate_precision(case))
        return Work(cost.generate_flops(*shape), moved) * config.layers
    moved = batch * mixer_state_bytes(config, case) + LEARNER_BYTES * _learner_elements(config)
    return Work(config.layers * cost.forward_flops(batch, case.context, heads, dim, mini_batch), moved)
