"""Do the Triton generate kernels compute the reference's function in every form, precision and position?

Without a GPU the kernels run in Triton's interpreter, in a process of its own: TRITON_INTERPRET counts at import.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tk_kernels import generate_common as common
from tk_kernels.ttt_linear import generate as linear_generate
from tk_kernels.ttt_linear import reference as linear_reference
from tk_kernels.ttt_mlp import generate as mlp_generate
from tk_kernels.ttt_mlp import reference as mlp_reference
from tk_kernels.tuning import tuning

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MODULES = {"linear": (linear_generate, linear_reference), "mlp": (mlp_generate, mlp_reference)}
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"

# Worst relative Frobenius error of `out` over all steps against float64: float32 sums of about D terms; planes and
# bfloat16 read W and cache rows with 8 bits (2^-9 a rounding; several products and a LayerNorm deep; 6.7e-3 seen),
# float16 with 11.
OUT_LIMIT = {"float32": 2e-6, "planes": 1e-2, "bfloat16": 1e-2, "float16": 2e-3}
# Error of the change of the state over its change: what planes must keep and 16-bit states alone cannot.
CHANGE_LIMIT = {"float32": 1e-5, "planes": 1e-2}

interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in the process that test_in_the_interpreter starts")
combinations = pytest.mark.parametrize(
    ("operator", "form", "precision"),
    [(o, f, p) for o in MODULES for f in common.FORMS for p in common.PRECISIONS],
)


def relative_error(x: torch.Tensor, reference: torch.Tensor) -> float:
    return float((x.double() - reference).norm() / reference.norm())


def random_state(operator: str, positions: list[int], H: int, D: int, m: int, seed: int = 0) -> Any:
    """A float64 state as training leaves it (W about 0.02), with rows up to each position and NaN-free noise after."""
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float) -> torch.Tensor:
        # multiples of 2^-12: the weights are not exact in 16 bits, so the planes and their rounding matter
        return (torch.randn(*shape, generator=gen, dtype=torch.float64) * std).float().double().to(DEVICE)

    B, F, g = len(positions), 4 * D, 1e-2
    position = torch.tensor(positions, dtype=torch.int32, device=DEVICE)
    k = normal(B, H, m, D, std=1.0)
    if operator == "linear":
        W, b = normal(B, H, D, D, std=0.02), normal(B, H, D, std=0.02)
        return linear_reference.LinearState(W, b, k, normal(B, H, m, D, std=g), position)
    weights = normal(B, H, D, F, std=0.02), normal(B, H, F, std=0.02), normal(B, H, F, D, std=0.02)
    rows = normal(B, H, m, F, std=0.3), normal(B, H, m, F, std=g), normal(B, H, m, D, std=g)
    return mlp_reference.MLPState(*weights, normal(B, H, D, std=0.02), k, *rows, position)


def outer_parameters(H: int, D: int, m: int) -> tuple[torch.Tensor, ...]:
    """token_scale [m], ln_weight and ln_bias [H, D]: away from 1, 1 and 0, so that each of them is felt."""
    gen = torch.Generator().manual_seed(7)
    scale = 1 / torch.arange(1, m + 1) + 0.1 * torch.rand(m, generator=gen)
    weight, bias = 0.2 * torch.randn(2, H, D, generator=gen)
    return scale.to(DEVICE), (1 + weight).to(DEVICE), bias.to(DEVICE)


def random_token(B: int, H: int, D: int, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, ...]:
    """q, k, v [B, H, D] and lr [B, H]."""
    gen = torch.Generator().manual_seed(1000 + seed)
    q, k, v = (torch.randn(B, H, D, generator=gen).to(DEVICE, dtype) for _ in range(3))
    return q, k, v, (torch.rand(B, H, generator=gen) / D).to(DEVICE)


def reference_form(operator: str, state: Any, form: str) -> Any:
    return MODULES[operator][1].primal_state(state) if form == "primal" else state


def weights_of(state: Any) -> torch.Tensor:
    """All that a completed mini-batch changes, in one vector."""
    return torch.cat([x.double().flatten() for name, x in state._asdict().items() if name[0] in "Wb"])


def run_both(
    operator: str, form: str, precision: str, positions: list[int], H: int, D: int, m: int, steps: int
) -> tuple[float, float, Any]:
    """Worst error of `out` over the steps, error of the state's change over its change, and the final state."""
    generate, reference = MODULES[operator]
    start = random_state(operator, positions, H, D, m)
    outer = outer_parameters(H, D, m)
    gstate = generate.GenerateState.from_state(start, form, precision)
    exact = reference_form(operator, start, form)
    worst, dtype = 0.0, torch.float32 if precision == "float32" else torch.bfloat16
    for step in range(steps):
        q, k, v, lr = random_token(len(positions), H, D, dtype, step)
        out = torch.full((len(positions), H, D), float("nan"), device=DEVICE)
        generate.generate_step(q, k, v, lr, *outer, gstate, form=form, out=out)
        expected, exact = reference.generate_step(
            q.double(), k.double(), v.double(), lr.double(), *(x.double() for x in outer), exact
        )
        error = relative_error(out, expected)
        worst = max(worst, error if error == error else float("inf"))
    final = gstate.to_state()
    assert final.position.tolist() == [(p + steps) % m for p in positions]
    moved = weights_of(exact) - weights_of(start)
    return worst, float((weights_of(final) - weights_of(exact)).norm() / moved.norm()), final


def test_in_the_interpreter() -> None:
    """Every test below, in a process whose Triton interprets."""
    pytest.importorskip("triton")
    if INTERPRETED:
        pytest.skip("this is that process")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not gpu", __file__]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@interpreted
@combinations
def test_mixed_positions(operator: str, form: str, precision: str) -> None:
    """Sequences at different positions, each completing a mini-batch at its own step."""
    out, change, _ = run_both(operator, form, precision, [0, 2, 3], H=2, D=16, m=4, steps=5)
    assert out < OUT_LIMIT[precision]
    assert change < CHANGE_LIMIT.get(precision, float("inf"))


@interpreted
@pytest.mark.parametrize("operator", MODULES)
def test_real_head(operator: str) -> None:
    """D = 64 and m = 16, across a completion."""
    out, change, _ = run_both(operator, "dual", "planes", [14], H=1, D=64, m=16, steps=3)
    assert out < OUT_LIMIT["planes"]
    assert change < CHANGE_LIMIT["planes"]


@interpreted
@pytest.mark.parametrize("form", common.FORMS)
@pytest.mark.parametrize("operator", MODULES)
def test_padded_head(operator: str, form: str) -> None:
    """D = 24 and m = 3: neither is a power of two (the 760m size has D = 96)."""
    out, change, _ = run_both(operator, form, "float32", [1, 2], H=1, D=24, m=3, steps=3)
    assert out < OUT_LIMIT["float32"]
    assert change < CHANGE_LIMIT["float32"]


@interpreted
@pytest.mark.parametrize("operator", MODULES)
def test_steps_repeat_bitwise(operator: str) -> None:
    states = [run_both(operator, "dual", "planes", [1, 3], H=1, D=16, m=4, steps=4)[2] for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


@interpreted
@pytest.mark.parametrize("operator", MODULES)
def test_rope_and_lr_logits_in_the_launch(operator: str) -> None:
    """The fused edges give what RoPE and sigmoid outside of the kernel give."""
    generate, _ = MODULES[operator]
    positions, H, D, m = [0, 3], 2, 16, 4
    outer, (q, k, v, logits) = outer_parameters(H, D, m), random_token(2, H, D, torch.float32, 5)
    table = common.rope_table(m, D, DEVICE)
    angle = torch.tensor(positions)[:, None, None] * 1e4 ** (-torch.arange(0, D, 2) / D)

    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones(()), angle)
        return torch.view_as_real(pairs).flatten(-2)

    fused, plain = (
        generate.GenerateState.from_state(random_state(operator, positions, H, D, m), "dual", "float32")
        for _ in range(2)
    )
    ours = generate.generate_step(q, k, v, logits, *outer, fused, rope=table, base_lr=0.1)
    lr = 0.1 * torch.sigmoid(logits) / D
    expected = generate.generate_step(turned(q), turned(k), v, lr, *outer, plain)
    assert relative_error(ours, expected.double()) < 1e-6
    assert relative_error(fused.gathered[0], plain.gathered[0].double()) < 1e-6


@interpreted
def test_strided_tokens_and_empty_batch() -> None:
    """q, k and v as slices of one projection; a batch of nothing."""
    outer, (q, k, v, lr) = outer_parameters(2, 16, 4), random_token(3, 2, 16, torch.float32, 1)
    states = [
        linear_generate.GenerateState.from_state(random_state("linear", [0, 1, 3], 2, 16, 4), "dual", "float32")
        for _ in range(2)
    ]
    sliced = torch.stack([q, k, v], dim=1).unbind(1)
    expected = linear_generate.generate_step(q, k, v, lr, *outer, states[0])
    assert torch.equal(linear_generate.generate_step(*sliced, lr, *outer, states[1]), expected)
    empty = linear_generate.GenerateState.from_state(random_state("linear", [], 2, 16, 4), "dual", "planes")
    assert linear_generate.generate_step(q[:0], k[:0], v[:0], lr[:0], *outer, empty).shape == (0, 2, 16)


def test_planes_are_the_exact_float32() -> None:
    bits = torch.cat([torch.randint(-(2**31), 2**31, (10000,)), torch.tensor([0x8000, 0x7FFF, 0x18000, 0x3F808000])])
    x = bits.to(torch.int32).view(torch.float32)
    x = x[x.isfinite()]
    high, low = common.split_planes(x)
    assert torch.equal(common.join_planes(high, low).view(torch.int32), x.view(torch.int32))
    small = x[(x.abs() < 1e38) & (x.abs() > 1e-37)]
    assert torch.all((common.split_planes(small)[0].double() - small.double()).abs() <= small.double().abs() * 2**-8)
    assert relative_error(common.split_planes(torch.tensor([1 + 2**-8 + 2**-20]))[0], torch.tensor([1 + 2**-7])) == 0


@pytest.mark.parametrize("operator", MODULES)
def test_state_round_trip(operator: str) -> None:
    """from_state then to_state: exact for planes, and for primal the sums of the rows that count."""
    generate, reference = MODULES[operator]
    state = random_state(operator, [0, 2, 3], 2, 16, 4)
    back = generate.GenerateState.from_state(state, "dual", "planes").to_state()
    assert torch.equal(weights_of(back), weights_of(state))
    assert back.position.tolist() == [0, 2, 3]
    sums = generate.GenerateState.from_state(state, "primal", "float32").to_state()
    expected = reference.primal_state(state)
    assert all(relative_error(a, b.double()) < 1e-6 for a, b in zip(sums, expected, strict=True))


@pytest.mark.parametrize(
    ("form", "precision", "message"), [("duall", "planes", "form 'duall'"), ("dual", "fp8", "precision 'fp8'")]
)
def test_wrong_choices_are_named(form: str, precision: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        common.check_choice(form, precision)


def test_tuning_falls_back_to_the_default() -> None:
    for operator in ("ttt_linear", "ttt_mlp"):
        for form in common.FORMS:
            for precision in common.PRECISIONS:
                assert tuning(operator, form, precision, "a GPU of tomorrow").warps in (1, 2, 4, 8, 16)
    with pytest.raises(KeyError, match=r"no row ttt_conv\.dual"):
        tuning("ttt_conv", "dual", "planes", "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize("batch", [1, 3, 512])
@combinations
def test_256_steps_on_a_gpu(operator: str, form: str, precision: str, batch: int) -> None:
    """Every position, mixed over the batch; at the size of the 1.3b model's layer; first, middle and last sequences."""
    out, change = gpu_errors(operator, form, precision, batch, steps=256 if batch < 512 else 48)
    assert out < OUT_LIMIT[precision]
    assert change < CHANGE_LIMIT.get(precision, float("inf"))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize("operator", MODULES)
def test_offsets_beyond_32_bits(operator: str) -> None:
    """B = 4096: 2^31 elements in each weight of the MLP."""
    out, change = gpu_errors(operator, "dual", "planes", 4096, steps=6)
    assert out < OUT_LIMIT["planes"]
    assert change < CHANGE_LIMIT["planes"]


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize("form", common.FORMS)
@pytest.mark.parametrize("operator", MODULES)
def test_graph_replays_what_eager_steps_do(operator: str, form: str) -> None:
    """One captured step serves every position, and repeats bit by bit."""
    generate, _ = MODULES[operator]
    H, D, m = 4, 64, 16
    outer, token = outer_parameters(H, D, m), random_token(5, H, D, torch.bfloat16, 3)
    start = random_state(operator, [0, 3, 14, 15, 7], H, D, m)
    eager, replayed = (generate.GenerateState.from_state(start, form, "planes") for _ in range(2))
    generate.generate_step(*token, *outer, generate.GenerateState.from_state(start, form, "planes"))  # compiled
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(token[0])
    with torch.cuda.graph(graph):
        generate.generate_step(*token, *outer, replayed, out=out)
    for _ in range(20):
        expected = generate.generate_step(*token, *outer, eager)
        graph.replay()
        assert torch.equal(out, expected)
    assert all(torch.equal(a, b) for a, b in zip(eager.tensors(), replayed.tensors(), strict=True))


def gpu_errors(operator: str, form: str, precision: str, batch: int, steps: int) -> tuple[float, float]:
    """As `run_both`, with 32 heads of 64 and m = 16, against float64 for at most 8 sequences of the batch."""
    generate, reference = MODULES[operator]
    H, D, m = 32, 64, 16
    distinct = min(batch, 16)
    positions = [(5 * i + 11) % m for i in range(distinct)]
    few = random_state(operator, positions, H, D, m)
    chosen = torch.tensor(sorted({0, 1, batch // 2, batch // 2 + 1, batch - 2, batch - 1} & set(range(batch))))
    outer = outer_parameters(H, D, m)
    whole = type(few)(*(x.float().repeat(-(-batch // distinct), *[1] * (x.dim() - 1))[:batch] for x in few))
    gstate = generate.GenerateState.from_state(whole._replace(position=whole.position.int()), form, precision)
    del whole
    start = type(few)(*(x[chosen.to(DEVICE) % distinct] for x in few))
    exact, worst = reference_form(operator, start, form), 0.0
    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    gen = torch.Generator(DEVICE).manual_seed(11)
    for _ in range(steps):
        q, k, v = (torch.randn(batch, H, D, generator=gen, device=DEVICE).to(dtype) for _ in range(3))
        lr = torch.rand(batch, H, generator=gen, device=DEVICE) / D
        out = torch.full((batch, H, D), float("nan"), device=DEVICE)
        generate.generate_step(q, k, v, lr, *outer, gstate, form=form, out=out)
        assert not out.isnan().any()
        sampled = (x[chosen.to(DEVICE)].double() for x in (q, k, v, lr))
        expected, exact = reference.generate_step(*sampled, *(x.double() for x in outer), exact)
        worst = max(worst, relative_error(out[chosen.to(DEVICE)], expected))
    fields = {name: x[chosen.to(DEVICE)] if isinstance(x, torch.Tensor) else x for name, x in vars(gstate).items()}
    fields["gathered"] = tuple(x[chosen.to(DEVICE)] for x in gstate.gathered)
    moved = weights_of(exact) - weights_of(start)
    change = weights_of(generate.GenerateState(**fields).to_state()) - weights_of(exact)
    return worst, float(change.norm() / moved.norm())
