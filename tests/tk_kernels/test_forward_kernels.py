"""The forward kernels keep their accuracy over long, trained-looking sequences, and heads do not affect each other."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from reference_cases import OPERATORS, Case
from torch import Tensor

from tests.tk_kernels.tolerances import OUTPUT_ERROR, relative_error
from tk_kernels.ttt_linear import ops as linear_ops
from tk_kernels.ttt_mlp import ops as mlp_ops

STATE_ERROR = 5e-3  # of the float32 state, whose updates are products of bfloat16
GROWTH = 1.5  # of the error, from the first quarter of a sequence to the last: W itself grows in the first
WEIGHTS = {"linear": ("W", "b"), "mlp": ("W1", "b1", "W2", "b2")}
SHAPES = {"linear": ((64, 64), (1, 64)), "mlp": ((64, 256), (1, 256), (256, 64), (1, 64))}
BASE_LR = {"linear": 1.0, "mlp": 0.1}

pytestmark = pytest.mark.gpu


class Kernel(NamedTuple):
    """An operator ("linear", "mlp"), the mini-batch that picks its kernel, and what `forward` needs to run it."""

    operator: str
    mini_batch: int
    forward: Callable[..., tuple[Tensor, Any]]


LINEAR = ["linear-16-2-4", "linear-16-4-1", "linear-32-4-1"]
MLP = [f"mlp-{mini_batch}" for mini_batch in mlp_ops.KERNELS]
TRITON = [f"{name}-{mini_batch}-triton" for name in ("linear", "mlp") for mini_batch in (16, 32)]


@pytest.fixture(params=[*LINEAR, *MLP, *TRITON])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Each operator, mini-batch and backend; of TTT-Linear every schedule (warps a head, heads a block)."""
    name, mini_batch, *plan = request.param.split("-")
    ops = linear_ops if name == "linear" else mlp_ops
    if plan == ["triton"]:
        return Kernel(name, int(mini_batch), partial(ops.forward, backend="triton"))
    reason = ops.available(int(mini_batch))
    if reason:
        pytest.skip(reason)
    if plan:
        monkeypatch.setattr(linear_ops, "schedule", lambda *_: tuple(map(int, plan)))
    return Kernel(name, int(mini_batch), ops.forward)


def trained(kernel: Kernel, batch: int, tokens: int, heads: int, correlation: float) -> Case:
    """Trained-looking arguments: queries share the keys' direction, values follow keys, norms differ."""
    operator, mini_batch, _ = kernel
    generator = torch.Generator("cuda").manual_seed(tokens)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(*shape, device="cuda", generator=generator)

    common, fresh = correlation, (1 - correlation**2) ** 0.5
    direction = normal(batch, 1, heads, 64)
    norms = torch.linspace(0.5, 2, heads, device="cuda")[:, None] * normal(batch, tokens, heads, 1, std=0.3).exp()
    q, k = (norms * (common * direction + fresh * normal(batch, tokens, heads, 64)) for _ in range(2))
    v = k / 2 + normal(batch, tokens, heads, 64)
    lr = BASE_LR[operator] * torch.sigmoid(normal(batch, tokens, heads)) / 64
    scale = (1 / torch.arange(1, mini_batch + 1, device="cuda") + normal(mini_batch, std=0.02)).clamp_min(0)
    outer = (1 + normal(heads, 64, std=0.1), normal(heads, 64, std=0.1))
    weights = (normal(heads, *shape, std=0.02) for shape in SHAPES[operator])
    state = OPERATORS[operator].init_state(*weights, batch, mini_batch)
    return Case(q.bfloat16(), k.bfloat16(), v.bfloat16(), lr, scale, *outer, state)


def exact(operator: str, args: Case) -> tuple[Tensor, Any]:
    """The reference in float64, from the same rounded inputs."""
    state = type(args.state)(*(x.double() for x in args.state[:-1]), args.state.position)
    return OPERATORS[operator].forward(*(x.double() for x in args[:-1]), state, start=0)


@pytest.mark.parametrize("correlation", [0.5, 0.9])
@pytest.mark.parametrize("tokens", [2048, 8192, 32768])
def test_error_does_not_grow_with_length(kernel, tokens, correlation, record_property):
    args = trained(kernel, 1, tokens, 4, correlation)
    (out, state), (out_exact, state_exact) = kernel.forward(*args, start=0), exact(kernel.operator, args)
    quarters = [relative_error(*pair) for pair in zip(out.chunk(4, 1), out_exact.chunk(4, 1), strict=True)]
    errors = {
        name: relative_error(getattr(state, name), getattr(state_exact, name)) for name in WEIGHTS[kernel.operator]
    }
    errors["out"] = relative_error(out, out_exact)
    record_property("relative errors", errors | {"quarters of out": quarters})
    print(errors, quarters)
    assert errors.pop("out") < OUTPUT_ERROR[torch.bfloat16]
    assert max(errors.values()) < STATE_ERROR
    assert quarters[-1] < GROWTH * quarters[0]


@pytest.mark.parametrize("tokens", [1, 17, 100])
def test_every_element_is_written_in_its_dtype(kernel, poisoned, tokens):
    args = trained(kernel, 2, tokens, 5, 0.5)
    out, state = kernel.forward(*args, start=0)
    assert out.dtype == torch.bfloat16
    assert out.isfinite().all()
    for result, given in zip(state[:-1], args.state[:-1], strict=True):
        assert result.dtype == torch.float32
        assert result.shape == given.shape
        assert result.isfinite().all()


def test_two_runs_are_bitwise_equal(kernel):
    args = trained(kernel, 3, 1000, 50, 0.5)
    (out, state), (again, state_again) = (kernel.forward(*args, start=0) for _ in range(2))
    assert torch.equal(out, again)
    assert all(torch.equal(a, b) for a, b in zip(state, state_again, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["q", "k", "v", "lr", "weight"])
def test_nan_and_infinity_stay_in_their_head(kernel, name, bad):
    """Of 3 sequences of 6 heads one head is bad, and neither its neighbours in memory nor those in its block are."""
    args = trained(kernel, 3, 50, 6, 0.5)
    clean = kernel.forward(*args, start=0)
    out, state = kernel.forward(*spoiled(kernel.operator, args, name, bad), start=0)
    others = torch.ones(3, 6, dtype=torch.bool, device="cuda")
    others[1, 2] = False
    assert torch.equal(out.transpose(1, 2)[others], clean[0].transpose(1, 2)[others])
    assert all(torch.equal(a[others], b[others]) for a, b in zip(state[:-1], clean[1][:-1], strict=True))
    assert not out[1, :, 2].isfinite().all()


def spoiled(operator: str, args: Case, name: str, bad: float) -> Case:
    """The same arguments with one bad element in head 2 of sequence 1."""
    if name == "weight":
        weight = WEIGHTS[operator][0]
        changed = getattr(args.state, weight).clone()
        changed[1, 2, 30, 40] = bad
        return args._replace(state=args.state._replace(**{weight: changed}))
    changed = getattr(args, name).clone()
    changed[1, 20, 2, ...] = bad
    return args._replace(**{name: changed})
