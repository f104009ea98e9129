"""How is one of the project's kernels measured alone? One layer of a model, on random activations."""

from collections.abc import Callable
from importlib import import_module
from itertools import cycle, islice
from typing import Any

import torch

from bench.models.config import TTTConfig, model_config
from bench.systems.ceilings import measured_ceilings
from bench.systems.language_model import STEPS
from bench.systems.launches import Launch, launches, metrics_of, settings_of
from bench.systems.torch_layer import LIMITS, forward_verdict, inputs_of, layer_inputs, to_float64
from harness.case import Case
from harness.cuda_clock import input_sets, l2_bytes
from harness.gate import Check, Verdict, relative_error
from harness.system import Workload
from tk_kernels.build import Built
from tk_kernels.build import build as build_kernel
from tk_kernels.generate_common import PRECISIONS

GATE_TOKENS = 32768
GATE_SEQUENCES = 4
GATE_STEPS = 2 * STEPS + 5
STREAMED = 20  # a set of so many times the L2 leaves nothing of itself in it


def build(case: Case, form: str, precision: str) -> Workload:
    """The forward of a layer, or a mini-batch of its generate steps in `form` and `precision`."""
    config = model_config(case.system, case.size)
    assert isinstance(config, TTTConfig)
    return _forward(case, config) if case.phase == "forward" else _generate(case, config, form, precision)


def _forward(case: Case, config: TTTConfig) -> Workload:
    operator = f"tk_kernels.ttt_{config.learner}"
    reference, ops, cost = (import_module(f"{operator}.{part}") for part in ("reference", "ops", "cost"))
    inputs = layer_inputs(config, case.batch, case.context, getattr(torch, case.dtype))
    shape = (case.batch, case.context, config.heads, config.head_dim)
    last = slice(case.batch - 1, case.batch)

    def gate() -> Verdict:
        piece = inputs_of(inputs, last, min(case.context, GATE_TOKENS))
        verdict = forward_verdict(lambda some: ops.forward(**some, start=0), reference, "dual", piece)
        return Verdict([*verdict.checks, _repeats(lambda: ops.forward(**inputs, start=0)[0])])

    found, built = launches(lambda: ops.forward(**inputs, start=0)), build_kernel(ops.KERNEL)
    return Workload(
        run=lambda: ops.forward(**inputs, start=0),
        tokens=case.batch * case.context,
        device="cuda",
        gate=gate,
        metrics={
            "flops": cost.forward_flops(*shape, config.mini_batch),
            "bytes": cost.forward_bytes(*shape),
            "launches": len(found),
            **_compiled_metrics(found, built),
            **measured_ceilings(),
        },
        settings=settings_of(found) | _made_of(built),
    )


def _compiled_metrics(found: list[Launch], built: Built) -> dict[str, float | None]:
    """`metrics_of` the launches of a compiled module's own kernels, with the spills that its compiler reported."""
    compiled = {kernel.name: kernel for kernel in built.resources}
    own = [launch for launch in found if launch.name in compiled]
    spilled = [compiled[launch.name].spill_store_bytes + compiled[launch.name].spill_load_bytes for launch in own]
    return metrics_of(own) | {"spilled_bytes": max(spilled)}


def _made_of(built: Built) -> dict[str, str]:
    """What the machine code of a module came from."""
    made = built.ingredients
    return {name: str(made[name]) for name in ("compiler", "flags", "thunderkittens")}


def _repeats(run: Any) -> Check:
    """Two runs must agree to the bit."""
    first, second = run(), run()
    return Check.at_most("elements_that_differ_between_runs", float((first != second).sum()), 0.0)


def _generate(case: Case, config: TTTConfig, form: str, precision: str) -> Workload:
    """Sets of sequences take turns at every step, so that each finds its state in memory and not in the L2."""
    operator = f"tk_kernels.ttt_{config.learner}"
    reference, generate, cost = (import_module(f"{operator}.{part}") for part in ("reference", "generate", "cost"))
    dtype = getattr(torch, case.dtype)

    def new_set() -> tuple[Any, Callable[[int], object]]:
        return _steps(generate, layer_inputs(config, case.batch, STEPS, dtype), form, precision)

    state, first = new_set()
    state_bytes = sum(x.numel() * x.element_size() for x in state.tensors())
    count = 1 if state_bytes > STREAMED * l2_bytes() else input_sets(state_bytes, l2_bytes())
    sets = [first, *(new_set()[1] for _ in range(count - 1))]
    read = cost.generate_bytes(
        case.batch,
        config.heads,
        config.head_dim,
        config.mini_batch,
        form,
        precision,
        row_element_bytes=PRECISIONS[precision].rows.itemsize,
    )

    def run() -> None:
        for step in range(STEPS):
            for advance in sets:
                advance(step)

    found = launches(lambda: sets[0](0))
    return Workload(
        run=run,
        units=STEPS * count,
        tokens=case.batch,
        device="cuda",
        gate=lambda: _generate_verdict(reference, generate, config, case, form, precision),
        metrics={
            "flops": cost.generate_flops(case.batch, config.heads, config.head_dim, config.mini_batch, form),
            "bytes": read,
            "state_bytes": state_bytes,
            "launches": len(found),
            **metrics_of(found),
            **measured_ceilings(),
        },
        settings={"input_sets": str(count)} | settings_of(found),
    )


def _steps(generate: Any, inputs: dict[str, Any], form: str, precision: str) -> tuple[Any, Callable[[int], object]]:
    """The state of one set of sequences, and a function that advances it by the token at a step."""
    state = generate.GenerateState.from_state(inputs["state"], form, precision)
    outer = [inputs[name] for name in ("token_scale", "ln_weight", "ln_bias")]
    columns = [[inputs[name][:, t].contiguous() for name in ("q", "k", "v", "lr")] for t in range(STEPS)]
    out = torch.empty_like(columns[0][0])
    return state, lambda step: generate.generate_step(*columns[step], *outer, state, out=out)


def _generate_verdict(
    reference: Any, generate: Any, config: TTTConfig, case: Case, form: str, precision: str
) -> Verdict:
    """A few sequences at mixed positions, over two mini-batches, against the reference in float64."""
    sequences = min(case.batch, GATE_SEQUENCES)
    inputs = layer_inputs(config, sequences, GATE_STEPS + STEPS, getattr(torch, case.dtype))
    exact = {name: to_float64(value) for name, value in inputs.items()}
    outer = ("token_scale", "ln_weight", "ln_bias")
    state, rows = exact["state"], []
    for b in range(sequences):  # sequence b starts b + 1 tokens into its mini-batch
        prompt = inputs_of(exact, slice(b, b + 1), b + 1)
        rows.append(reference.forward(**prompt)[1])
    state = type(state)(*(torch.cat(tensors) for tensors in zip(*rows, strict=True)))
    kernel_state = generate.GenerateState.from_state(
        type(state)(*(x.float() if x.is_floating_point() else x for x in state)), form, precision
    )
    expected, got = [], []
    for t in islice(cycle(range(STEPS, GATE_STEPS + STEPS)), GATE_STEPS):
        token = [inputs[name][:, t].contiguous() for name in ("q", "k", "v", "lr")]
        got.append(generate.generate_step(*token, *(inputs[name] for name in outer), kernel_state))
        truth = [x.double() for x in token]
        out, state = reference.generate_step(*truth, *(exact[name] for name in outer), state)
        expected.append(out)
    error = relative_error(torch.stack(got), torch.stack(expected))
    return Verdict([Check.at_most("output_relative_error", error, LIMITS[case.dtype])])
