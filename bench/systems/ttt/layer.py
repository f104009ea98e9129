"""Measure and check one TTT layer in PyTorch: its inner operator on random activations."""

from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any

import torch

from bench.cost import total
from bench.models.case_model import ttt_config_of
from bench.models.config import TTTConfig
from bench.systems.checked_sequences import drawn
from bench.systems.measured_peaks import peaks_of
from bench.systems.on_device import device
from harness.measure.correctness import Check, Checks, relative_error
from harness.measure.system import Input, Workload
from harness.schema.case import Case
from harness.schema.work import TTT, Work
from tk_kernels.cost import COSTS

# Relative error against float64: one GEMM of bfloat16 inputs rounds to 2e-3, and the layer chains a few.
LAYER_LIMITS = {"bfloat16": 1e-2, "float16": 5e-3, "float32": 1e-5}
LAYER_CHECK_TOKENS = 64
# Most compared tokens: the dual form in float64 takes ten launches per mini-batch, a second or two on an H100.
LAYER_CHECKED_TOKENS = 131072
CHECKED_PIECE = 8192  # tokens of a sequence in float64 at once
PER_TOKEN = ("q", "k", "v", "lr")  # arguments of a reference's `forward`


def build(case: Case) -> Workload:
    """Build the workload of a layer's forward on `batch` sequences of `context` tokens.

    Option form: dual (default) or primal.
    Option part: half of the dual form, "w" (states) or "z" (outputs), as in figure 8 of the paper.
    """
    config = ttt_config_of(case)
    reference = import_module(f"tk_kernels.ttt_{config.learner}.reference")
    inputs = layer_inputs(config, case.batch, case.context, getattr(torch, case.dtype))
    run, read, timed_check = _part(reference, case, inputs)
    work = layer_work(config, case)
    return Workload(
        run=run,
        tokens=case.batch * case.context,
        device=device(),
        inputs=renewed(inputs, config, read),
        timed_check=timed_check,
        check=lambda: check_layer(reference.forward, reference, case, inputs),
        metrics=layer_metrics(work),
        work=work,
    )


def layer_work(config: TTTConfig, case: Case) -> dict[str, Work]:
    """Return a layer's FLOPs and least bytes in the case's form; {} with the option part."""
    if case.option("part", ""):
        return {}
    cost = COSTS[config.learner]
    heads, dim, mini_batch = config.heads, config.head_dim, config.mini_batch
    if case.option("form", "dual") == "primal":
        flops = cost.generate_flops(case.batch * case.context, heads, dim, mini_batch, "primal")
    else:
        flops = cost.forward_flops(case.batch, case.context, heads, dim, mini_batch)
    element_bytes = getattr(torch, case.dtype).itemsize
    return {TTT: Work(flops, cost.forward_bytes(case.batch, case.context, heads, dim, element_bytes))}


def layer_metrics(work: dict[str, Work]) -> dict[str, float | None]:
    """Return the metrics of `work` and, on a GPU, the measured peaks; {} without work."""
    return total(work).metrics() | peaks_of(device()) if work else {}


def layer_inputs(config: TTTConfig, batch: int, tokens: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return random arguments, by name, for a reference's `forward`.

    q, k, v [B, T, H, D] are standard normal, like normalised projections; lr [B, T, H] is uniform up to base_lr / D.
    """
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


def renewed(inputs: dict[str, Any], config: TTTConfig, names: tuple[str, ...] = PER_TOKEN) -> dict[str, Input]:
    """Return the arguments `names` of a `forward` as `Input`s, which the harness refills."""
    rates = Input(inputs["lr"], "uniform", config.base_lr / config.head_dim, 0, 1)
    return {name: rates if name == "lr" else Input(inputs[name], "normal", 1.0, 0, 1) for name in names}


def outputs_of(found: tuple[torch.Tensor, Any]) -> list[torch.Tensor]:
    """Return a `forward`'s compared results: outputs [B, T, H, D], final weights and biases."""
    out, state = found
    return [out, *learned(state).values()]


def learned(state: Any) -> dict[str, torch.Tensor]:
    """Return the weights and biases of a reference's state, by name."""
    return {name: getattr(state, name) for name in state._fields if name[0] in "Wb"}


TimedCheck = Callable[[Random], Callable[[Any, int], Checks]]


def _part(
    reference: Any, case: Case, inputs: dict[str, Any]
) -> tuple[Callable[[], list[torch.Tensor]], tuple[str, ...], TimedCheck]:
    """Return the timed call, its inputs' names and its check, by the options `part` and `form`."""
    part = case.option("part", "")
    without_q = {name: value for name, value in inputs.items() if name != "q"}
    if part == "w":
        timed_check = forward_timed_check(reference, inputs, case.dtype, with_out=False)
        return lambda: list(learned(reference.states(**without_q, start=0)[1]).values()), ("k", "v", "lr"), timed_check
    if part == "z":
        trace, _ = reference.states(**without_q, start=0)
        arguments = {name: value for name, value in inputs.items() if name not in ("v", "state")}
        timed_check = _outputs_timed_check(reference, arguments, trace, case.dtype)
        return lambda: [reference.outputs(**arguments, trace=trace)], ("q", "k", "lr"), timed_check
    form, timed_check = case.option("form", "dual"), forward_timed_check(reference, inputs, case.dtype)
    return lambda: outputs_of(reference.forward(**inputs, form=form, start=0)), PER_TOKEN, timed_check


def forward_timed_check(reference: Any, inputs: dict[str, Any], dtype: str, with_out: bool = True) -> TimedCheck:
    """Return a timed check (see `Workload`) of drawn sequences against the dual form in float64.

    It compares the first LAYER_CHECKED_TOKENS tokens, and the final weights if the context has no more tokens.
    with_out: whether the timed results begin with the outputs [B, T, H, D]; else they are the final weights alone.
    """
    batch, context = inputs["q"].shape[:2]
    tokens = min(context, LAYER_CHECKED_TOKENS)

    def timed_check(rng: Random) -> Callable[[Any, int], Checks]:
        rows = drawn(rng, batch, context, LAYER_CHECKED_TOKENS)

        def compare(outputs: list[torch.Tensor], calls: int) -> Checks:
            expected, state = exact_forward(reference, inputs, rows, tokens)
            found = [("output", outputs[0][rows, :tokens], expected)] if with_out else []
            if tokens == context:
                weights = outputs[1:] if with_out else outputs
                pairs = zip(learned(state).items(), weights, strict=True)
                found += [(name, got[rows], exact) for (name, exact), got in pairs if name.startswith("W")]
            missing = "" if tokens == context else f"of {context} tokens the first {tokens} were compared"
            return check_timed(found, dtype, missing)

        return compare

    return timed_check


def check_timed(found: list[tuple[str, torch.Tensor, torch.Tensor]], dtype: str, unchecked: str = "") -> Checks:
    """Check triples (name, timed result, reference's result) within the LAYER_LIMITS of `dtype`."""
    limit = LAYER_LIMITS[dtype]
    checks = [
        Check.at_most(f"timed_{name}_relative_error", relative_error(got, exact), limit) for name, got, exact in found
    ]
    return Checks(checks, unchecked)


def exact_forward(reference: Any, inputs: dict[str, Any], rows: list[int], tokens: int) -> tuple[torch.Tensor, Any]:
    """Run the reference in float64 on the first `tokens` tokens of the sequences `rows`.

    Returns outputs [rows, tokens, H, D], stored in float32, and the final state.
    """
    shared = {name: to_float64(value) for name, value in inputs.items() if name not in (*PER_TOKEN, "state")}
    state = to_float64(type(inputs["state"])(*(tensor[rows] for tensor in inputs["state"])))
    mini_batch, found = len(inputs["token_scale"]), []
    piece = mini_batch * max(1, CHECKED_PIECE // mini_batch)
    for low in range(0, tokens, piece):
        some = {name: inputs[name][rows, low : min(low + piece, tokens)].double() for name in PER_TOKEN}
        out, state = reference.forward(**some, **shared, state=state, start=0)
        found.append(out.float())
    return torch.cat(found, dim=1), state


def _outputs_timed_check(reference: Any, arguments: dict[str, Any], trace: Any, dtype: str) -> TimedCheck:
    """Check a drawn sequence's first outputs for part "z", from the same `trace` in float64."""
    batch, context, heads = arguments["q"].shape[:3]
    mini_batches = max(1, min(context, CHECKED_PIECE) // len(arguments["token_scale"]))
    tokens = mini_batches * len(arguments["token_scale"])

    def timed_check(rng: Random) -> Callable[[Any, int], Checks]:
        row = rng.randrange(batch)

        def compare(outputs: list[torch.Tensor], calls: int) -> Checks:
            some = {
                name: value[row : row + 1, :tokens] if name in PER_TOKEN else value for name, value in arguments.items()
            }
            exact = {name: to_float64(value) for name, value in some.items()}
            states = tuple(x[:mini_batches, row * heads : (row + 1) * heads].double() for x in trace)
            expected = reference.outputs(**exact, trace=states)
            missing = "" if tokens == context else f"of {context} tokens the first {tokens} were compared"
            return check_timed([("output", outputs[0][row : row + 1, :tokens], expected)], dtype, missing)

        return compare

    return timed_check


def check_forward(run: Callable[[dict[str, Any]], Any], reference: Any, form: str, piece: dict[str, Any]) -> Checks:
    """Check outputs and final weights of run(piece) against the reference in float64 and `form`."""
    out, state = run(piece)
    exact = {name: to_float64(value) for name, value in piece.items()}
    expected, expected_state = reference.forward(**exact, form=form, start=0)
    limit = LAYER_LIMITS[str(out.dtype).removeprefix("torch.")]
    weights = {name: (getattr(state, name), getattr(expected_state, name)) for name in state._fields if name[0] == "W"}
    compared = {"output": (out, expected)} | weights
    errors = {name: relative_error(*pair) for name, pair in compared.items()}
    return Checks([Check.at_most(f"{name}_relative_error", error, limit) for name, error in errors.items()])


def inputs_of(inputs: dict[str, Any], sequences: slice, tokens: int) -> dict[str, Any]:
    """Return a `forward`'s arguments for `sequences` and their first `tokens` tokens."""
    piece = {name: value[sequences, :tokens] if name in PER_TOKEN else value for name, value in inputs.items()}
    piece["state"] = type(inputs["state"])(*(tensor[sequences] for tensor in inputs["state"]))
    return piece


def check_layer(forward: Callable[..., Any], reference: Any, case: Case, inputs: dict[str, Any]) -> Checks:
    """Check `forward` on a sequence's first tokens against the primal form."""
    piece = inputs_of(inputs, slice(0, 1), max(LAYER_CHECK_TOKENS, int(case.option("mini_batch", 16))))
    form = case.option("form", "dual")
    return check_forward(lambda some: forward(**some, form=form), reference, "primal", piece)


def to_float64(value: Any) -> Any:
    """Return a tensor, or all tensors of a state, in float64; integers are unchanged."""
    if isinstance(value, tuple):
        return type(value)(*(to_float64(tensor) for tensor in value))
    return value.double() if value.is_floating_point() else value
