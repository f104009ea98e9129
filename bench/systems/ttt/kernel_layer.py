"""Measure and check this repository's kernels in one TTT layer, on random activations.

Shapes: B sequences, T tokens, H heads, D channels per head.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from random import Random
from typing import Any

import torch

from bench.models.case_model import ttt_config_of
from bench.models.config import TTTConfig
from bench.models.operator import rows_of
from bench.systems.measured_peaks import peaks_of
from bench.systems.ttt.layer import (
    LAYER_LIMITS,
    PER_TOKEN,
    check_forward,
    check_results,
    forward_workload,
    inputs_of,
    layer_inputs,
)
from harness.measure.correctness import Check, Checks, relative_error
from harness.measure.cuda_clock import input_sets, l2_bytes
from harness.measure.system import Input, Workload
from harness.schema.case import Case
from harness.schema.work import TTT, Work
from tk_kernels.build import build as build_kernel
from tk_kernels.cost import COSTS
from tk_kernels.forward.operator import THUNDERKITTENS
from tk_kernels.generate.common import PRECISIONS
from tk_kernels.generate.tuning import Tuning
from tk_kernels.parallel import compile_all
from tk_kernels.reference.token_rows import mapped, to_float64

KERNEL_CHECK_TOKENS = 32768  # maximum of tokens that the check before timing compares
KERNEL_CHECK_SEQUENCES = 4  # maximum of sequences in each check of steps
OUTER = ("token_scale", "ln_weight", "ln_bias")  # arguments of `forward` that all sequences share
CHECKED_STEPS = 4096  # maximum of checked steps per sequence; for more, the reference would take seconds
STREAMED = 20  # a state larger than this many L2 caches is evicted between steps, so one set of sequences is enough


def build(case: Case, form: str, precision: str, backend: str) -> Workload:
    """Build a case's workload: the forward or the generate steps of one layer.

    form ("dual" or "primal") and precision (a key of PRECISIONS) apply to generate steps, backend to the forward.
    """
    config = ttt_config_of(case)
    return _forward(case, config, backend) if case.phase == "forward" else _generate(case, config, form, precision)


def _forward(case: Case, config: TTTConfig, backend: str) -> Workload:
    operator = f"tk_kernels.ttt_{config.learner}"
    reference, ops = (import_module(f"{operator}.{part}") for part in ("reference", "ops"))
    forward = partial(ops.forward, start=0, backend=backend)
    inputs = layer_inputs(config, case.batch, case.context, getattr(torch, case.dtype))
    last, checked_tokens = slice(case.batch - 1, case.batch), min(case.context, KERNEL_CHECK_TOKENS)

    def check() -> Checks:
        piece = inputs_of(inputs, last, checked_tokens)
        checked = check_forward(forward, reference, "dual", piece)
        step = -(-case.batch // KERNEL_CHECK_SEQUENCES)
        first, second = (forward(**inputs)[0][::step].clone() for _ in range(2))
        differ = float((first != second).sum())
        return checked + Checks([Check.at_most("elements_that_differ_between_runs", differ, 0.0)])

    settings = {"checked": f"the first {checked_tokens} tokens of the last sequence"}
    if backend == THUNDERKITTENS:
        build_inputs = build_kernel(ops.KERNELS[config.mini_batch]).build_inputs
        settings |= {name: str(build_inputs[name]) for name in ("compiler", "flags", "thunderkittens")}
    return forward_workload(case, reference, inputs, forward, check, settings)


def _generate(case: Case, config: TTTConfig, form: str, precision: str) -> Workload:
    cost = COSTS[config.learner]
    _compile_steps(config, getattr(torch, case.dtype), form)
    first = generate_set(config, case.batch, case.dtype, form, precision)
    work = steps_in_turn(first, config, case.dtype)
    shape = (case.batch, config.heads, config.head_dim, config.mini_batch, form)
    least = Work(cost.generate_flops(*shape), cost.generate_bytes(*shape, precision))
    checked = min(case.batch, KERNEL_CHECK_SEQUENCES)
    return Workload(
        run=work.run,
        units=work.units,
        tokens=case.batch,
        device="cuda",
        inputs=work.inputs(),
        timed_check=work.timed_check,
        check=lambda: check_generate(config, checked, case.dtype, form, precision),
        metrics=least.metrics() | {"state_bytes": first.state_bytes} | peaks_of("cuda"),
        work={TTT: least},
        settings={
            "checked": f"{_check_steps(config)} tokens of {checked} sequences that are not timed",
            "input_sets": str(len(work.sets)),
        },
    )


@dataclass
class GenerateSet:
    """State, inputs and outputs of consecutive generate steps of B sequences.

    generate: module with the kernels, such as `tk_kernels.ttt_mlp.generate`.
    outer: token_scale, ln_weight and ln_bias. tokens: q, k, v [steps, B, H, D] and lr [steps, B, H].
    out [steps, B, H, D]: outputs. launch: launch settings; None for the settings in `tuning.toml`.
    """

    generate: Any
    state: Any
    outer: list[torch.Tensor]
    tokens: list[torch.Tensor]
    out: torch.Tensor
    launch: Tuning | None = None

    @property
    def state_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self.state.tensors())

    @classmethod
    def of(cls, generate: Any, inputs: dict[str, Any], form: str, precision: str) -> "GenerateSet":
        """Make a set from `inputs`, which have the names and shapes of the result of `layer_inputs`."""
        state = generate.GenerateState.from_state(inputs["state"], form, precision)
        tokens = [inputs[name].transpose(0, 1).contiguous() for name in PER_TOKEN]
        return cls(generate, state, [inputs[name] for name in OUTER], tokens, torch.empty_like(tokens[0]))

    def advance(self, step: int, **options: Any) -> None:
        token = [each[step] for each in self.tokens]
        self.generate.generate_step(*token, *self.outer, self.state, out=self.out[step], launch=self.launch, **options)


class Steps:
    """Timed generate: in each of `rounds` rounds, every `GenerateSet` in `sets` runs one step.

    q, k, v, lr and the outputs of all sets and rounds are one tensor [sets, rounds, B, ...] each.
    """

    def __init__(self, sets: list[GenerateSet], config: TTTConfig, dtype: str) -> None:
        self.sets, self.config, self.dtype = sets, config, dtype
        self.rounds = max(1, config.mini_batch // len(sets))
        kinds = zip(*(some.tokens for some in sets), strict=True)
        self._tokens = [torch.stack([each[: self.rounds] for each in kind]) for kind in kinds]
        self._out = torch.stack([some.out[: self.rounds] for some in sets])
        for index, some in enumerate(sets):
            some.tokens, some.out = [each[index] for each in self._tokens], self._out[index]

    @property
    def units(self) -> int:
        return self.rounds * len(self.sets)

    def inputs(self) -> dict[str, Input]:
        """Return the inputs by name: q, k, v [sets, rounds, B, H, D] and lr [sets, rounds, B, H]."""
        rates = Input(self._tokens[3], "uniform", self.config.base_lr / self.config.head_dim, 2)
        return {name: Input(each, "normal", 1.0, 2) for name, each in zip("qkv", self._tokens, strict=False)} | {
            "lr": rates
        }

    def run(self) -> torch.Tensor:
        """Run all steps; return the outputs [units, B, H, D], ordered by set, then by round."""
        for step in range(self.rounds):
            for some in self.sets:
                some.advance(step)
        return self._out.flatten(0, 1)

    def timed_check(self, rng: Random) -> Callable[[torch.Tensor, int], Checks]:
        """Return a check of the last outputs of random sequences in one random `GenerateSet`.

        The check (`Workload.timed_check`) repeats the sample's steps in float64, from a copy of the present states.
        If the sample has more than CHECKED_STEPS steps per sequence, the check compares nothing.
        """
        drawn_set = rng.randrange(len(self.sets))
        some = self.sets[drawn_set]
        batch = some.out.shape[1]
        rows = sorted(rng.sample(range(batch), min(batch, KERNEL_CHECK_SEQUENCES)))
        initial = rows_of(some.state, rows).to_state()

        def compare(out: torch.Tensor, calls: int) -> Checks:
            steps = calls * self.rounds
            if steps > CHECKED_STEPS:
                return Checks([], f"timed outputs not checked: {steps} steps per sequence, more than {CHECKED_STEPS}")
            expected = _exact_steps(some, initial, rows, calls, self.rounds)
            last = out[(drawn_set + 1) * self.rounds - 1]
            return check_results({"output": last[rows]}, {"output": expected}, self.dtype, "timed_")

        return compare


@torch.no_grad()
def _exact_steps(some: GenerateSet, initial: Any, rows: list[int], calls: int, rounds: int) -> torch.Tensor:
    """Run `calls` x `rounds` steps in float64; return the last step's outputs [len(rows), H, D]."""
    reference = import_module(some.generate.__name__.rpartition(".")[0] + ".reference")
    precision = PRECISIONS[some.state.precision]
    outer, state = [each.double() for each in some.outer], to_float64(initial)
    tokens = [each[:, rows].double() for each in some.tokens]
    for _ in range(calls):
        for step in range(rounds):
            out, state = reference.generate_step(*(each[step] for each in tokens), *outer, state)
            if precision.weights.itemsize < 4 and not precision.planes:  # 16-bit states round W after each step
                W = {name: x.to(precision.weights).double() for name, x in state._asdict().items() if name[0] == "W"}
                state = state._replace(**W)
    return out


def generate_set(config: TTTConfig, batch: int, dtype: str, form: str, precision: str) -> GenerateSet:
    """Return a `GenerateSet` of `batch` new sequences with random weights and inputs."""
    generate = import_module(f"tk_kernels.ttt_{config.learner}.generate")
    inputs = layer_inputs(config, batch, config.mini_batch, getattr(torch, dtype))
    return GenerateSet.of(generate, inputs, form, precision)


def steps_in_turn(first: GenerateSet, config: TTTConfig, dtype: str) -> Steps:
    """Return `Steps` over `first` and copies, so that each step reads its state from DRAM."""
    streamed = first.state_bytes > STREAMED * l2_bytes()
    return Steps(staggered(first, 1 if streamed else input_sets(first.state_bytes, l2_bytes())), config, dtype)


def staggered(first: GenerateSet, at_least: int) -> list[GenerateSet]:
    """Return `at_least` or more sets, `first` and copies, at evenly spread mini-batch positions."""
    m = len(first.tokens[0])
    count = -(-at_least // m) * m if at_least > m else next(n for n in range(at_least, m + 1) if m % n == 0)
    sets = [first, *(replace(first, state=deepcopy(first.state)) for _ in range(count - 1))]
    for index, some in enumerate(sets):
        some.state.position.fill_(index * max(m, count) // count % m)
    return sets


@cache
def _compile_steps(config: TTTConfig, dtype: torch.dtype, form: str) -> None:
    generate = import_module(f"tk_kernels.ttt_{config.learner}.generate")
    inputs = layer_inputs(config, 1, config.mini_batch, dtype)
    sets = [GenerateSet.of(generate, inputs, form, precision) for precision in PRECISIONS]
    compile_all(partial(some.advance, 0, compile_only=True) for some in sets)


def _check_steps(config: TTTConfig) -> int:
    return 2 * config.mini_batch + 5  # past the ends of two mini-batches


@cache
def check_generate(
    config: TTTConfig, sequences: int, dtype: str, form: str, precision: str, launch: Tuning | None = None
) -> Checks:
    """Check generate steps of random sequences, past two mini-batch ends, against float64.

    form: "dual" or "primal". precision: of the state, a key of PRECISIONS.
    launch: launch settings; None for the settings in `tuning.toml`.
    """
    operator = f"tk_kernels.ttt_{config.learner}"
    reference, generate = (import_module(f"{operator}.{part}") for part in ("reference", "generate"))
    begin, steps = config.mini_batch, _check_steps(config)
    inputs = layer_inputs(config, sequences, begin + steps, getattr(torch, dtype))
    exact = {name: to_float64(value) for name, value in inputs.items()}
    # Sequence b starts at position b + 1 of its mini-batch.
    rows = [reference.forward(**inputs_of(exact, slice(b, b + 1), b + 1))[1] for b in range(sequences)]
    state = type(rows[0])(*(torch.cat(tensors) for tensors in zip(*rows, strict=True)))
    initial = mapped(state, lambda x: x.float() if x.is_floating_point() else x)
    after = {name: inputs[name][:, begin:] for name in PER_TOKEN}
    some, expected = GenerateSet.of(generate, inputs | after | {"state": initial}, form, precision), []
    some.launch = launch
    for step in range(steps):
        some.advance(step)
        token = (each[step].double() for each in some.tokens)
        out, state = reference.generate_step(*token, *(exact[name] for name in OUTER), state)
        expected.append(out)
    error = relative_error(some.out, torch.stack(expected))
    return Checks([Check.at_most("output_relative_error", error, LAYER_LIMITS[dtype])])
