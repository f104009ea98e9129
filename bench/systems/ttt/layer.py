"""Measure and check the inner loop of one TTT layer in PyTorch, on random activations.

Shapes: B sequences, T tokens, H heads, D channels per head.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from random import Random
from typing import Any

import torch

from bench.cost import total
from bench.models.case_model import ttt_config_of
from bench.models.config import TTTConfig
from bench.models.operator import rows_of
from bench.systems.checked_sequences import draw_sequences
from bench.systems.measured_peaks import peaks_of
from bench.systems.on_device import device
from harness.measure.correctness import Check, Checks, relative_error
from harness.measure.system import Input, Workload
from harness.schema.case import Case
from harness.schema.work import TTT, Work
from tk_kernels.cost import COSTS
from tk_kernels.reference.token_rows import to_float64

# Relative error against float64: one GEMM of bfloat16 inputs rounds to 2e-3, and the layer chains a few.
LAYER_LIMITS = {"bfloat16": 1e-2, "float16": 5e-3, "float32": 1e-5}
LAYER_CHECK_TOKENS = 64  # compared tokens before timing, in one sequence
LAYER_TIMED_CHECK_TOKENS = 131072  # maximum of compared tokens after timing, over all sequences
CHECKED_PIECE = 8192  # tokens per sequence that the reference runs in one call
PER_TOKEN = ("q", "k", "v", "lr")  # arguments of a reference's `forward` with a token axis
Results = dict[str, torch.Tensor]  # a forward's results by name: "output" [B, T, H, D], and final states [B, ...]


def build(case: Case) -> Workload:
    """Build the workload of a layer's forward on `batch` sequences of `context` tokens.

    Option form: dual (default) or primal.
    Option part: time half of the dual form, "w" (states) or "z" (outputs); see figure 8 of the TTT paper.
    """
    config = ttt_config_of(case)
    reference = import_module(f"tk_kernels.ttt_{config.learner}.reference")
    inputs = layer_inputs(config, case.batch, case.context, getattr(torch, case.dtype))
    part, form = case.option("part", ""), case.option("form", "dual")
    without_q = {name: value for name, value in inputs.items() if name != "q"}

    def forward(**arguments: Any) -> tuple[torch.Tensor, Any]:
        return reference.forward(**arguments, form=form, start=0)

    def check() -> Checks:
        piece = inputs_of(inputs, slice(1), max(LAYER_CHECK_TOKENS, config.mini_batch))
        return check_forward(forward, reference, "primal", piece)

    workload = forward_workload(case, reference, inputs, forward, check)
    if part == "w":
        run, names = lambda: inner_weights(reference.states(**without_q, start=0)[1]), ("k", "v", "lr")
    elif part == "z":
        trace, _ = reference.states(**without_q, start=0)
        arguments = {name: value for name, value in inputs.items() if name not in ("v", "state")}
        run, names = lambda: {"output": reference.outputs(**arguments, trace=trace)}, ("q", "k", "lr")
        exact = partial(_exact_outputs, reference, arguments, trace)
        workload.timed_check = layer_timed_check(case, exact, CHECKED_PIECE)
    else:
        return workload
    return replace(workload, run=run, inputs={name: workload.inputs[name] for name in names})


def forward_workload(
    case: Case,
    reference: Any,
    inputs: dict[str, Any],
    forward: Callable[..., tuple[torch.Tensor, Any]],
    check: Callable[[], Checks],
    settings: dict[str, str] | None = None,
) -> Workload:
    """Return a workload that times forward(**inputs); `check` runs before timing.

    inputs: the result of `layer_inputs`.
    reference: module such as `tk_kernels.ttt_mlp.reference`. It runs in float64 after timing, to check the results.
    """
    config = ttt_config_of(case)
    rates = Input(inputs["lr"], "uniform", config.base_lr / config.head_dim, 0, 1)
    return layer_workload(
        case,
        lambda: results_of(forward(**inputs)),
        {name: Input(inputs[name], "normal", 1.0, 0, 1) for name in "qkv"} | {"lr": rates},
        partial(exact_forward, reference, inputs),
        check,
        layer_work(config, case),
        settings or {},
        LAYER_TIMED_CHECK_TOKENS,
    )


def layer_workload(
    case: Case,
    run: Callable[[], Results],
    inputs: Mapping[str, Input],
    exact: Callable[[list[int], int], Results],
    check: Callable[[], Checks],
    work: dict[str, Work],
    settings: dict[str, str],
    most: int,
) -> Workload:
    """Return a workload that times `run`, the forward of one layer; `check` runs before timing.

    exact(sequences, tokens): returns the reference's results for the first `tokens` tokens of these sequences.
    most: most tokens compared after timing, in all sequences together.
    """
    return Workload(
        run=run,
        tokens=case.batch * case.context,
        device=device(),
        inputs=inputs,
        timed_check=layer_timed_check(case, exact, most),
        check=check,
        metrics=total(work).metrics() | peaks_of(device()) if work else {},
        work=work,
        settings=settings,
    )


def layer_timed_check(
    case: Case, exact: Callable[[list[int], int], Results], most: int
) -> Callable[[Random], Callable[[Results, int], Checks]]:
    """Return a `Workload.timed_check` that compares random sequences' results with `exact`.

    exact(sequences, tokens): returns the reference's results for the first `tokens` tokens of these sequences.
    most: limit on the compared tokens of all sequences. If the context is longer, no final state is compared.
    """
    tokens, whole = min(case.context, most), case.context <= most

    def timed_check(rng: Random) -> Callable[[Results, int], Checks]:
        rows = draw_sequences(rng, case.batch, case.context, most)

        def compare(results: Results, calls: int) -> Checks:
            found = {
                name: x[rows, :tokens] if name == "output" else x[rows]
                for name, x in results.items()
                if whole or name == "output"
            }
            missing = "" if whole else f"timed outputs: only the first {tokens} of {case.context} tokens compared"
            return check_results(found, exact(rows, tokens), case.dtype, "timed_") + Checks([], missing)

        return compare

    return timed_check


def check_results(found: Results, expected: Results, dtype: str, prefix: str = "") -> Checks:
    """Check relative errors of results in both dictionaries; check names begin with `prefix`."""
    limit = LAYER_LIMITS[dtype]
    errors = {name: relative_error(x, expected[name]) for name, x in found.items() if name in expected}
    return Checks([Check.at_most(f"{prefix}{name}_relative_error", error, limit) for name, error in errors.items()])


def layer_work(config: TTTConfig, case: Case) -> dict[str, Work]:
    """Return the layer's FLOPs and minimum bytes, as {TTT: work}; {} with the option `part`."""
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


def layer_inputs(config: TTTConfig, batch: int, tokens: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return random arguments, by name, for `forward` of a `tk_kernels.ttt_*.reference`.

    q, k, v [B, T, H, D]: standard normal, like normalised projections.
    lr [B, T, H]: learning rates, uniform from 0 to base_lr / D.
    token_scale [mini-batch], ln_weight and ln_bias [H, D]: shared by all sequences. state: the initial state.
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
        "state": reference.init_state(*weights, batch=batch, mini_batch=config.mini_batch),
    }


def results_of(found: tuple[torch.Tensor, Any]) -> Results:
    """Name the results of a `forward`: "output" [B, T, H, D], the final weights and biases."""
    out, state = found
    return {"output": out} | inner_weights(state)


def inner_weights(state: Any, kinds: str = "Wb") -> Results:
    """Return a reference state's tensors by name. kinds: "W" (weights), "b" (biases) or "Wb"."""
    return {name: getattr(state, name) for name in state._fields if name[0] in kinds}


def exact_forward(reference: Any, inputs: dict[str, Any], rows: list[int], tokens: int) -> Results:
    """Run the reference in float64 on the first `tokens` tokens of the sequences with indices `rows`.

    Returns "output" [len(rows), tokens, H, D], rounded to float32, and the final weight matrices, but no biases.
    """
    shared = {name: to_float64(value) for name, value in inputs.items() if name not in (*PER_TOKEN, "state")}
    state = to_float64(rows_of(inputs["state"], rows))
    mini_batch, found = len(inputs["token_scale"]), []
    piece = mini_batch * max(1, CHECKED_PIECE // mini_batch)
    for low in range(0, tokens, piece):
        some = {name: inputs[name][rows, low : min(low + piece, tokens)].double() for name in PER_TOKEN}
        out, state = reference.forward(**some, **shared, state=state, start=0)
        found.append(out.float())
    return {"output": torch.cat(found, dim=1)} | inner_weights(state, "W")


def _exact_outputs(reference: Any, arguments: dict[str, Any], trace: Any, rows: list[int], tokens: int) -> Results:
    """Return the first `tokens` outputs of `rows` in float64; `trace` is from reference.states."""
    batch, mini_batches = len(arguments["q"]), tokens // len(arguments["token_scale"])
    exact = {name: to_float64(x[rows, :tokens] if name in PER_TOKEN else x) for name, x in arguments.items()}
    states = tuple(x[:mini_batches].unflatten(1, (batch, -1))[:, rows].flatten(1, 2).double() for x in trace)
    return {"output": reference.outputs(**exact, trace=states)}


def check_forward(forward: Callable[..., Any], reference: Any, form: str, piece: dict[str, Any]) -> Checks:
    """Compare outputs and final weights of forward(**piece) with the reference's in float64."""
    found = results_of(forward(**piece))
    exact = {name: to_float64(value) for name, value in piece.items()}
    out, state = reference.forward(**exact, form=form, start=0)
    return check_results(
        found, {"output": out} | inner_weights(state, "W"), str(found["output"].dtype).removeprefix("torch.")
    )


def inputs_of(inputs: dict[str, Any], sequences: slice, tokens: int) -> dict[str, Any]:
    """Return the part of `inputs` for these sequences and their first `tokens` tokens."""
    piece = {name: value[sequences, :tokens] if name in PER_TOKEN else value for name, value in inputs.items()}
    return piece | {"state": rows_of(inputs["state"], sequences)}
