"""Compare each TTT layer's inner loop with a reference: logits hardly show its errors."""

from typing import Any, cast

import torch
from torch import Tensor

from bench.models.operator import Projections, TorchOperator
from bench.models.ttt import TTTLayer, TTTModel, rope_tables
from bench.systems.language_model import CHECK_BATCH
from bench.systems.logits import limit_dtype
from bench.systems.model_calls import prefill_then_generate, random_ids
from bench.systems.ttt.layer import LAYER_LIMITS
from harness.measure.correctness import Check, relative_error
from harness.schema.case import Case
from tk_kernels.reference.token_rows import mapped, to_float64

OperatorCall = tuple[Projections, Tensor]  # inputs of one layer's operator in float64, and the operator's outputs


class RecordedOperator:
    """Operator wrapper that records inputs and outputs of `forward` and `generate_step` calls."""

    def __init__(self, operator: TorchOperator) -> None:
        self.calls: list[OperatorCall] = []
        self._operator = operator

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._operator, name)

        def recorded(projections: Projections, *rest: Any, **named: Any) -> Tensor:
            given = mapped(projections, lambda x: x.to(torch.float64, copy=True))
            out = method(projections, *rest, **named)
            self.calls.append((given, out.clone()))
            return out

        return recorded if name in ("forward", "generate_step") else method


@torch.inference_mode()
def inner_loop_checks(model: TTTModel, case: Case, prompt: int) -> list[Check]:
    """Check each layer's inner loop on `prompt` tokens, then steps that finish two mini-batches.

    The reference computes the primal form in float64 from the model's own projections.
    """
    mini_batch = model.config.mini_batch
    ids = random_ids(model, CHECK_BATCH, prompt + 2 * mini_batch - prompt % mini_batch)
    operator = model.operator
    recorded = RecordedOperator(operator)
    model.operator = cast(TorchOperator, recorded)
    try:
        prefill_then_generate(model, ids, prompt)
    finally:
        model.operator = operator
    layers = [block.seq_modeling_block for block in model.blocks]
    errors = [_errors(layer, recorded.calls[index :: len(layers)]) for index, layer in enumerate(layers)]
    prefill, steps = torch.tensor(errors, dtype=torch.float64).amax(0).tolist()  # propagates NaN
    limit = LAYER_LIMITS[limit_dtype(case)]
    return [
        Check.at_most("inner_loop_prefill_relative_error", prefill, limit),
        Check.at_most("inner_loop_steps_relative_error", steps, limit),
    ]


def _errors(layer: TTTLayer, calls: list[OperatorCall]) -> tuple[float, float]:
    config, (prompt, out), steps = layer.config, calls[0], calls[1:]
    exact = TorchOperator(config.learner, form="primal")
    outer = to_float64(layer.outer_parameters(rope_tables(config, out.device, torch.float64)))
    weights = [each.double() for each in layer.learner_weights()]
    state = exact.init_state(weights, len(out), config.mini_batch, torch.float64)
    expected = exact.forward(prompt, outer, state, 0)
    state = exact.generate_state(state)
    after = [exact.generate_step(token, outer, state) for token, _ in steps]
    return relative_error(out, expected), relative_error(torch.stack([got for _, got in steps]), torch.stack(after))
