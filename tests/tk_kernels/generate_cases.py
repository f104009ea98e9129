"""Errors and error limits of the generate kernels against float64, on random states and tokens.

B: sequences, H: heads, D: head dimension, F = 4 D: hidden dimension of TTT-MLP, m: tokens of a mini-batch.
A simulation is the float64 reference, rounded wherever the kernel stores a rounded number. A kernel's error may reach
`SLACK` times the simulation's error, plus a limit for float32 sums.
"""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from harness.measure.correctness import relative_error
from tests.interpreter import DEVICE, INTERPRETED
from tests.tk_kernels.reference_cases import OPERATORS
from tests.tk_kernels.tensors import rotated
from tk_kernels import FORMS
from tk_kernels.generate import common
from tk_kernels.reference import learner
from tk_kernels.reference.token_rows import mapped, to_float64
from tk_kernels.ttt_linear import generate as linear_generate
from tk_kernels.ttt_mlp import generate as mlp_generate

GENERATE: dict[str, Any] = {"linear": linear_generate, "mlp": mlp_generate}

# Relative Frobenius errors of float32 sums of about D terms: `out`, and the state change over 256 steps.
OUT_LIMIT, CHANGE_LIMIT = 2e-6, 1e-5
# Kernel and simulation round a few values differently, because their last float32 bits differ.
SLACK = 1.05

combinations = pytest.mark.parametrize(
    ("operator", "form", "precision"),
    [(o, f, p) for o in GENERATE for f in FORMS for p in common.PRECISIONS],
)


class Errors(NamedTuple):
    """Relative errors to the float64 reference."""

    out: float  # the largest error of a step's output
    change: dict[str, float]  # by parameter: error of the final value / total change of the value


def random_state(operator: str, positions: list[int], H: int, D: int, m: int, std: float = 0.02) -> Any:
    """Return a random float64 state; sequence s has had positions[s] tokens of its current mini-batch."""
    gen = torch.Generator().manual_seed(0)

    def normal(*shape: int, std: float) -> Tensor:
        return (torch.randn(*shape, generator=gen, dtype=torch.float64) * std).float().double().to(DEVICE)

    B, F, g = len(positions), 4 * D, 1e-2
    position = torch.tensor(positions, dtype=torch.int32, device=DEVICE)
    k = normal(B, H, m, D, std=1.0)
    if operator == "linear":
        W, b = normal(B, H, D, D, std=std), normal(B, H, D, std=std)
        return OPERATORS["linear"].LinearState(W, b, k, normal(B, H, m, D, std=g), position)
    weights = normal(B, H, D, F, std=std), normal(B, H, F, std=std), normal(B, H, F, D, std=std)
    rows = normal(B, H, m, F, std=0.3), normal(B, H, m, F, std=g), normal(B, H, m, D, std=g)
    return OPERATORS["mlp"].MLPState(*weights, normal(B, H, D, std=std), k, *rows, position)


Forward = Callable[..., tuple[Tensor, Any]]


def forward_state(operator: str, positions: list[int], H: int, D: int, m: int, forward: Forward) -> Any:
    """Return the float64 state after `forward` of 2 m + positions[s] random tokens of each sequence s."""
    gen, reference, parts = torch.Generator(DEVICE).manual_seed(3), OPERATORS[operator], []
    outer, F = outer_parameters(H, D, m), 4 * D
    shapes = ((H, D, D), (H, 1, D)) if operator == "linear" else ((H, D, F), (H, 1, F), (H, F, D), (H, 1, D))
    for position in positions:
        tokens = 2 * m + position
        q, k, v = (torch.randn(1, tokens, H, D, generator=gen, device=DEVICE).bfloat16() for _ in range(3))
        lr = torch.rand(1, tokens, H, generator=gen, device=DEVICE) / D
        weights = [0.02 * torch.randn(shape, generator=gen, device=DEVICE) for shape in shapes]
        _, state = forward(q, k, v, lr, *outer, reference.init_state(*weights, batch=1, mini_batch=m))
        assert state.position.tolist() == [position]
        parts.append(state)
    return to_float64(type(parts[0])(*(torch.cat(tensors) for tensors in zip(*parts, strict=True))))


def outer_parameters(H: int, D: int, m: int) -> tuple[Tensor, ...]:
    """Return random token_scale [m], ln_weight [H, D] and ln_bias [H, D]."""
    gen = torch.Generator().manual_seed(7)
    scale = 1 / torch.arange(1, m + 1) + 0.1 * torch.rand(m, generator=gen)
    weight, bias = 0.2 * torch.randn(2, H, D, generator=gen)
    return scale.to(DEVICE), (1 + weight).to(DEVICE), bias.to(DEVICE)


def random_token(B: int, H: int, D: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
    gen = torch.Generator(DEVICE).manual_seed(1000 + seed)
    q, k, v = (torch.randn(B, H, D, generator=gen, device=DEVICE).to(dtype) for _ in range(3))
    return q, k, v, torch.rand(B, H, generator=gen, device=DEVICE) / D


def weights_of(state: Any) -> dict[str, Tensor]:
    return {name: x.double() for name, x in state._asdict().items() if name[0] in "Wb"}


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x as a kernel stores it: rounded to `dtype`, except that Triton's interpreter truncates to bfloat16."""
    if INTERPRETED and dtype == torch.bfloat16:
        return (x.float().view(torch.int32) & -0x10000).view(torch.float32).double()
    return x.to(dtype).double()


class Exact:
    def __init__(self, operator: str, start: Any, form: str) -> None:
        self.reference = OPERATORS[operator]
        self.state = self.reference.primal_state(start) if form == "primal" else start

    def step(self, token: tuple[Tensor, ...], outer: tuple[Tensor, ...]) -> Tensor:
        out, self.state = self.reference.generate_step(*token, *outer, self.state)
        return out


class Simulation(Exact):
    def __init__(self, operator: str, start: Any, form: str, precision: str) -> None:
        super().__init__(operator, start, form)
        self.kind = common.PRECISIONS[precision]
        rows = {name: x.to(self.kind.rows).double() for name, x in start._asdict().items() if name.endswith("_rows")}
        self.master_type = torch.float32 if self.kind.planes else self.kind.weights
        self.state = self._with_weights(lambda x: x.to(self.master_type).double())
        if form == "dual":
            self.state = self.state._replace(**rows)

    def _with_weights(self, change: Callable[[Tensor], Tensor]) -> Any:
        weights = {name: change(x) for name, x in self.state._asdict().items() if name in ("W", "W1", "W2")}
        return self.state._replace(**weights)

    def step(self, token: tuple[Tensor, ...], outer: tuple[Tensor, ...]) -> Tensor:
        master = self.state
        self.state = read = self._with_weights(lambda x: x.to(self.kind.weights).double())
        with self._rows_rounded():
            out = super().step(token, outer)
        rewritten = {
            name: stored(getattr(master, name) + (getattr(self.state, name) - getattr(read, name)), self.master_type)
            for name in ("W", "W1", "W2")
            if hasattr(master, name)
        }
        self.state = self.state._replace(**rewritten)
        return out

    @contextmanager
    def _rows_rounded(self) -> Any:
        """Make the reference round a token's cached inputs and gradients when it stores them, as the kernel does."""
        with pytest.MonkeyPatch.context() as patch:
            write = learner.write_rows_
            rounded = lambda rows, x, at: write(rows, stored(x, self.kind.rows), at)  # noqa: E731
            patch.setattr(learner, "write_rows_", rounded)
            yield


Step = Callable[[Any, tuple[Tensor, ...], tuple[Tensor, ...], Tensor], None]


def compare(
    operator: str, form: str, precision: str, start: Any, steps: int, batch: int = 0, step: Step | None = None
) -> None:
    """Compare `steps` generate steps from state `start` on the kernel, the simulation and the float64 reference.

    form: "dual" or "primal". precision: a key of `common.PRECISIONS`.
    batch: number of sequences; 0: as in `start`. A larger batch repeats the sequences of `start`; up to 8 are compared.
    step: runs a step of the kernel, by default `generate_step`.
    """
    generate, distinct = GENERATE[operator], len(start.position)
    batch = batch or distinct
    H, m = start.k_rows.shape[1:3]
    D = start.k_rows.shape[3]
    chosen, sequences = compared_sequences(batch, distinct), torch.arange(batch, device=DEVICE) % distinct
    outer, dtype = outer_parameters(H, D, m), torch.float32 if precision == "float32" else torch.bfloat16
    whole = type(start)(*(x.float()[sequences] if x.is_floating_point() else x[sequences] for x in start))
    gstate = generate.GenerateState.from_state(whole, form, precision)
    del whole
    first = type(start)(*(x[sequences[chosen]] for x in start))
    exact, simulation = Exact(operator, first, form), Simulation(operator, first, form, precision)
    before, wide, worst = weights_of(exact.state), tuple(x.double() for x in outer), [0.0, 0.0]
    out = torch.empty(batch, H, D, device=DEVICE)
    for number in range(steps):
        token = random_token(batch, H, D, dtype, number)
        out.fill_(float("nan"))
        if step:
            step(gstate, token, outer, out)
        else:
            generate.generate_step(*token, *outer, gstate, out=out)
        assert out.isfinite().all()
        sampled = tuple(x[chosen].double() for x in token)
        expected = exact.step(sampled, wide)
        found = out[chosen], simulation.step(sampled, wide)
        worst = [max(w, relative_error(x, expected)) for w, x in zip(worst, found, strict=True)]
    final = mapped(gstate, lambda x: x[chosen]).to_state()
    assert torch.equal(final.position, (first.position + steps) % m)
    for name, sums in final._asdict().items():
        assert name[0] != "d" or not sums[final.position == 0].any(), f"{name} of an earlier mini-batch"
    changes = [_change_error(state, exact.state, before) for state in (final, simulation.state)]
    kernel, simulated = (Errors(*pair) for pair in zip(worst, changes, strict=True))
    both = f"kernel {kernel}, simulated {simulated}"
    assert kernel.out < OUT_LIMIT + SLACK * simulated.out, both
    for name, error in kernel.change.items():
        assert error < CHANGE_LIMIT + SLACK * simulated.change[name], f"{name}: {both}"


def _change_error(state: Any, exact: Any, before: Mapping[str, Tensor]) -> dict[str, float]:
    found, expected = weights_of(state), weights_of(exact)
    moved = {name: expected[name] - before[name] for name in before}
    return {n: float((found[n] - expected[n]).norm() / x.norm()) if x.any() else 0.0 for n, x in moved.items()}


def check_rope_and_rates_in_the_launch(
    operator: str, positions: list[int], H: int, D: int, m: int, precision: str
) -> None:
    generate, B = GENERATE[operator], len(positions)
    outer, (q, k, v, logits) = outer_parameters(H, D, m), random_token(B, H, D, torch.float32, 5)
    rate = 1e4 ** (-torch.arange(0, D, 2) / D)
    angles = torch.outer(torch.arange(m), rate).to(DEVICE)
    angle = angles[torch.tensor(positions)][:, None]

    fused, plain = (
        generate.GenerateState.from_state(random_state(operator, positions, H, D, m), "dual", precision)
        for _ in range(2)
    )
    table = common.rope_table(angles.cos(), angles.sin())
    ours = generate.generate_step(q, k, v, logits, *outer, fused, rope=table, base_lr=0.1)
    lr = 0.1 * torch.sigmoid(logits) / D
    expected = generate.generate_step(rotated(q, angle), rotated(k, angle), v, lr, *outer, plain)
    assert torch.equal(fused.position, plain.position)
    assert relative_error(ours, expected.double()) < 1e-6
    for found, given in zip(fused.to_state(), plain.to_state(), strict=True):
        assert relative_error(found, given.double()) < 1e-6


def check_slots(operator: str, positions: list[int], H: int, D: int, m: int) -> None:
    generate, B = GENERATE[operator], len(positions)
    outer, token = outer_parameters(H, D, m), random_token(B, H, D, torch.bfloat16, 5)
    alone = generate.GenerateState.from_state(random_state(operator, positions, H, D, m), "dual", "planes")
    slots = torch.arange(B, device=DEVICE) * 2 + 1

    def pooled(x: Tensor) -> Tensor:
        pool = torch.full((2 * B + 1, 2, *x.shape[1:]), 7, dtype=x.dtype, device=DEVICE)[:, 1]
        pool[slots] = x
        return pool

    paged = replace(mapped(alone, pooled), slots=slots, position=alone.position.clone())
    assert torch.equal(generate.generate_step(*token, *outer, paged), generate.generate_step(*token, *outer, alone))
    assert paged.position[:, 0].tolist() == positions
    for found, expected in zip(paged.tensors(), alone.tensors(), strict=True):
        if found is not paged.position:
            assert torch.equal(found[slots], expected)
            assert bool((found[::2] == 7).all())


def compared_sequences(batch: int, distinct: int) -> Tensor:
    if batch <= distinct:
        return torch.arange(batch, device=DEVICE)
    middle = batch // 2
    return torch.tensor([0, 1, 2, middle - 1, middle, batch - 3, batch - 2, batch - 1], device=DEVICE).unique()
