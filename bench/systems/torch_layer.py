"""How is one TTT layer measured in PyTorch? Its inner operator on random activations: dual, primal, or one part."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from bench.models.config import TTTConfig, model_config
from bench.systems.ceilings import measured_ceilings
from bench.systems.language_model import device
from harness.case import Case
from harness.gate import Check, Verdict, relative_error
from harness.system import Workload

# Against float64: one product of bfloat16 inputs rounds to 2e-3, and the layer chains a few.
LIMITS = {"bfloat16": 1e-2, "float16": 5e-3, "float32": 1e-5}
GATE_TOKENS = 64


def build(case: Case) -> Workload:
    """`batch` sequences of `context` tokens through the operator; option form is dual (default) or primal.

    Option part times one half of the dual form alone: "w", the states at the mini-batches' ends, or "z", the outputs
    that follow from them (figure 8).
    """
    config = model_config(case.system, case.size, mini_batch=int(case.option("mini_batch", 16)))
    assert isinstance(config, TTTConfig)
    reference = import_module(f"tk_kernels.ttt_{config.learner}.reference")
    inputs = layer_inputs(config, case.batch, case.context, getattr(torch, case.dtype))
    return Workload(
        run=_part(reference, case, inputs),
        tokens=case.batch * case.context,
        device=device(),
        gate=lambda: forward_gate(reference.forward, reference, case, inputs),
        metrics=layer_metrics(config, case),
    )


def layer_metrics(config: TTTConfig, case: Case) -> dict[str, float | None]:
    """FLOPs of a layer's forward in the case's form, its least bytes and, on a GPU, the ceilings of both.

    Nothing for a part of the layer, whose share of them is not counted.
    """
    if case.option("part", ""):
        return {}
    cost = import_module(f"tk_kernels.ttt_{config.learner}.cost")
    heads, dim, mini_batch = config.heads, config.head_dim, config.mini_batch
    if case.option("form", "dual") == "primal":
        flops = cost.generate_flops(case.batch * case.context, heads, dim, mini_batch, "primal")
    else:
        flops = cost.forward_flops(case.batch, case.context, heads, dim, mini_batch)
    element_bytes = getattr(torch, case.dtype).itemsize
    moved = cost.forward_bytes(case.batch, case.context, heads, dim, element_bytes)
    return {"flops": flops, "bytes": moved} | (measured_ceilings() if device() == "cuda" else {})


def layer_inputs(config: TTTConfig, batch: int, tokens: int, dtype: torch.dtype) -> dict[str, Any]:
    """The arguments of a reference's `forward`: activations of the spread that norms and projections give them."""
    heads, dim = config.heads, config.head_dim
    q, k, v = (torch.randn(batch, tokens, heads, dim, device=device(), dtype=dtype) for _ in range(3))
    lr = torch.rand(batch, tokens, heads, device=device()) * (config.base_lr / dim)
    weights = [
        0.02 * torch.randn(shape, device=device()) if name.startswith("W") else torch.zeros(shape, device=device())
        for name, shape in config.weight_shapes.items()
    ]
    reference = import_module(f"tk_kernels.ttt_{config.learner}.reference")
    return {
        "q": q,
        "k": k,
        "v": v,
        "lr": lr,
        "token_scale": 1.0 / torch.arange(1, config.mini_batch + 1, device=device()),
        "ln_weight": 1 + 0.02 * torch.randn(heads, dim, device=device()),
        "ln_bias": 0.02 * torch.randn(heads, dim, device=device()),
        "state": reference.init_state(*weights, batch, config.mini_batch),
    }


def _part(reference: Any, case: Case, inputs: dict[str, Any]) -> Callable[[], object]:
    part = case.option("part", "")
    without_q = {name: value for name, value in inputs.items() if name != "q"}
    if part == "w":
        return lambda: reference.states(**without_q, start=0)
    if part == "z":
        trace, _ = reference.states(**without_q, start=0)
        arguments = {name: value for name, value in inputs.items() if name not in ("v", "state")}
        return lambda: reference.outputs(**arguments, trace=trace)
    return lambda: reference.forward(**inputs, form=case.option("form", "dual"), start=0)


def forward_verdict(run: Callable[[dict[str, Any]], Any], reference: Any, form: str, piece: dict[str, Any]) -> Verdict:
    """Outputs and final weights of `run`, for some of the inputs, against the reference in float64 in `form`."""
    out, state = run(piece)
    exact = {name: to_float64(value) for name, value in piece.items()}
    expected, expected_state = reference.forward(**exact, form=form, start=0)
    limit = LIMITS[str(out.dtype).removeprefix("torch.")]
    weights = [name for name in state._fields if name.startswith("W")]
    return Verdict(
        [
            Check.at_most("output_relative_error", relative_error(out, expected), limit),
            *(_state_check(name, state, expected_state, limit) for name in weights),
        ]
    )


def inputs_of(inputs: dict[str, Any], sequences: slice, tokens: int) -> dict[str, Any]:
    """The first tokens of some of the sequences."""
    per_token = ("q", "k", "v", "lr")
    piece = {name: value[sequences, :tokens] if name in per_token else value for name, value in inputs.items()}
    piece["state"] = type(inputs["state"])(*(tensor[sequences] for tensor in inputs["state"]))
    return piece


def forward_gate(forward: Callable[..., Any], reference: Any, case: Case, inputs: dict[str, Any]) -> Verdict:
    """The first tokens of one sequence, against every gradient and every W_t materialised."""
    piece = inputs_of(inputs, slice(0, 1), max(GATE_TOKENS, int(case.option("mini_batch", 16))))
    form = case.option("form", "dual")
    return forward_verdict(lambda some: forward(**some, form=form), reference, "primal", piece)


def _state_check(name: str, state: Any, expected: Any, limit: float) -> Check:
    return Check.at_most(f"{name}_relative_error", relative_error(getattr(state, name), getattr(expected, name)), limit)


def to_float64(value: Any) -> Any:
    """Floating tensors, alone or in a state, in float64."""
    if isinstance(value, tuple):
        return type(value)(*(to_float64(tensor) for tensor in value))
    return value.double() if value.is_floating_point() else value
