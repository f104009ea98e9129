"""`ttt-bench build --tune`: find fast launch settings of Triton kernels for `tuning.toml`."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import product
from statistics import median
from typing import Any

import torch

from bench.errors import UserError
from bench.models.config import BASE_LR, TTTConfig, model_config
from bench.plan import refuse_unknown_architecture
from bench.systems.needs import no_gpu
from bench.systems.ttt.kernel_layer import KERNEL_CHECK_SEQUENCES, OUTER, check_generate, generate_set, steps_in_turn
from bench.systems.ttt.layer import PER_TOKEN, check_forward, inputs_of, layer_inputs
from bench.terminal import note
from harness.measure.correctness import Checks
from harness.measure.cuda_clock import CudaEventClock
from harness.measure.timer import measure
from harness.schema.policy import Policy
from tk_kernels import FORMS
from tk_kernels.generate.common import PRECISIONS, SM90, available, compiles_narrow_dots, section_name
from tk_kernels.generate.tuning import FORWARD, FORWARD_ROWS, Tuning, candidates, section
from tk_kernels.parallel import compile_all

SIZE, BATCH = "1.3b", 512
FORWARD_SIZES = {"wide": "760m"}  # by row of `tuning.toml`; SIZE for other rows. wide: head dimension 96
FORWARD_BATCHES = {"few": 1}
FORWARD_TOKENS, CHECKED_TOKENS = 2048, 128
POLICY = Policy(budget_s=0.5)


def tune() -> None:
    """Print the fastest Triton settings for `tuning.toml`; UserError without a usable GPU."""
    refuse_unknown_architecture()
    if reason := available() or no_gpu():
        raise UserError(f"the kernels cannot be tuned on this machine: {reason}")
    for learner, form in product(BASE_LR, (*FORMS, FORWARD)):
        for name, rows in _rows(learner, form).items():
            print(section(name, f"ttt_{learner}", form, rows), end="\n\n", flush=True)


def _rows(learner: str, form: str) -> dict[str, dict[str, Tuning]]:
    forward, found = form == FORWARD, dict[str, dict[str, Tuning]]()
    for row in FORWARD_ROWS[f"ttt_{learner}"] if forward else PRECISIONS:
        name, launch = fastest_forward(learner, row) if forward else fastest_step(learner, form, row)
        if launch is None:
            note(f"ttt-{learner} {form} {row}: no candidate can be used")
        else:
            found.setdefault(name, {})[row] = launch
    return found


def fastest_step(learner: str, form: str, precision: str) -> tuple[str, Tuning | None]:
    """Find the fastest launch settings of the generate kernel for one state precision.

    learner: "linear" or "mlp". form: "dual" or "primal". precision: a key of PRECISIONS.
    Returns (section name in `tuning.toml`, settings); settings are None if no candidate passes its check.
    """
    config, dtype = _config(learner, SIZE), "float32" if precision == "float32" else "bfloat16"
    work = generate_set(config, BATCH, dtype, form, precision)
    name = work.state.tuned_as()
    possible = candidates(f"ttt_{learner}", form, precision, sm90=name.startswith(SM90))
    tried = [each for each in possible if not each.matrix or compiles_narrow_dots()]
    compile_all(partial(replace(work, launch=launch).advance, 0, compile_only=True) for launch in tried)

    def check(launch: Tuning) -> Checks:
        return check_generate(config, min(BATCH, KERNEL_CHECK_SEQUENCES), dtype, form, precision, launch)

    def step_us(launch: Tuning) -> float:
        # on new sequences, because thousands of steps would change the state
        fresh = replace(generate_set(config, BATCH, dtype, form, precision), launch=launch)
        steps = steps_in_turn(fresh, config, dtype)
        return _median_us(steps.run) / steps.units

    return name, _fastest(f"ttt-{learner} {form} {precision}", tried, check, step_us)


def fastest_forward(learner: str, row: str) -> tuple[str, Tuning | None]:
    """Find the fastest launch settings of Triton's forward kernel for one class of sizes.

    learner: "linear" or "mlp". row: the class, listed in FORWARD_ROWS; it determines the model size and batch.
    Returns (section name in `tuning.toml`, settings); settings are None if no candidate passes its check.
    """
    config = _config(learner, FORWARD_SIZES.get(row, SIZE))
    kernel, reference = (import_module(f"tk_kernels.ttt_{learner}.{part}") for part in ("forward", "reference"))
    inputs = layer_inputs(config, FORWARD_BATCHES.get(row, 16), FORWARD_TOKENS, torch.bfloat16)

    def run(launch: Tuning, compile_only: bool = False, **inputs: Any) -> tuple[torch.Tensor, Any]:
        state, tokens = inputs["state"], tuple(inputs[name] for name in PER_TOKEN)
        out, after = torch.empty_like(inputs["q"]), type(state)(*map(torch.empty_like, state))
        weights = tuple(x for name, x in state._asdict().items() if name[0] in "Wb")
        outer = tuple(inputs[name] for name in OUTER)
        kernel.launch(tokens, outer, weights, (out, *after[:-1]), launch, compile_only=compile_only)
        return out, after

    def check(launch: Tuning) -> Checks:
        piece = inputs_of(inputs, slice(1), CHECKED_TOKENS)
        return check_forward(partial(run, launch), reference, "dual", piece)

    def run_us(launch: Tuning) -> float:
        return _median_us(partial(run, launch, **inputs))

    tried = list(candidates(f"ttt_{learner}", FORWARD, row))
    compile_all(partial(run, launch, compile_only=True, **inputs) for launch in tried)
    name = section_name(False, inputs["q"].device)
    return name, _fastest(f"ttt-{learner} forward {row}", tried, check, run_us)


def _config(learner: str, size: str) -> TTTConfig:
    config = model_config(f"ttt-{learner}", size)
    assert isinstance(config, TTTConfig)
    return config


def _median_us(run: Callable[[], object]) -> float:
    clock = CudaEventClock("graph")  # as in the figures of the generate phase
    return median(measure(run, clock, POLICY).samples_ms) * 1e3


def _fastest(
    label: str, tried: Sequence[Tuning], check: Callable[[Tuning], Checks], time_us: Callable[[Tuning], float]
) -> Tuning | None:
    from triton.runtime.errors import OutOfResources, PTXASError

    times_us: dict[Tuning, float] = {}
    for launch in tried:
        try:
            fault = check(launch).reason
        except (OutOfResources, PTXASError) as error:
            fault = " ".join(str(error).split())
        if not fault:
            times_us[launch] = time_us(launch)
        note(f"{label} {launch}: {fault or f'{times_us[launch]:.1f} µs'}")
    return min(times_us, key=lambda launch: times_us[launch], default=None)
