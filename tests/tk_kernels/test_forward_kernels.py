"""The forward kernels match the reference at any length, mini-batch and number of warps; heads are independent."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from harness.measure.correctness import relative_error
from tests.tk_kernels.forward_prompts import ERROR, OPS, STATE_ERROR, arguments, assert_matches, exact
from tests.tk_kernels.reference_cases import OPERATORS, Case
from tk_kernels.reference.token_rows import clone

GROWTH = 1.5  # largest ratio of the errors in the last and first quarter of a sequence
SHAPES = {"linear": ((64, 64), (1, 64)), "mlp": ((64, 256), (1, 256), (256, 64), (1, 64))}
BASE_LR = {"linear": 1.0, "mlp": 0.1}

pytestmark = pytest.mark.gpu


class ForwardKernel(NamedTuple):
    """A forward function, its operator ("linear" or "mlp"), and the mini-batch size of a call."""

    operator: str
    mini_batch: int
    forward: Callable[..., tuple[Tensor, Any]]


LINEAR = ["linear-16-2-4", "linear-16-4-1", "linear-32-4-1"]
MLP = [f"mlp-{mini_batch}" for mini_batch in OPS["mlp"].KERNELS]
TRITON = [f"{name}-{mini_batch}-triton" for name in ("linear", "mlp") for mini_batch in (16, 32)]


@pytest.fixture(params=[*LINEAR, *MLP, *TRITON])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ForwardKernel:
    name, mini_batch, *plan = request.param.split("-")
    ops = OPS[name]
    if plan == ["triton"]:
        return ForwardKernel(name, int(mini_batch), partial(ops.forward, backend="triton"))
    reason = ops.available(int(mini_batch))
    if reason:
        pytest.skip(reason)
    if plan:
        monkeypatch.setattr(ops.OPERATOR, "plan", lambda *_: tuple(map(int, plan)))
    return ForwardKernel(name, int(mini_batch), ops.forward)


def trained(kernel: ForwardKernel, batch: int, tokens: int, heads: int, shared_weight: float) -> Case:
    """Return arguments like a trained model's: q and k share a direction, and v depends on k.

    shared_weight: the weight of the shared direction in q and k, 0 to 1.
    """
    operator, mini_batch, _ = kernel
    generator = torch.Generator("cuda").manual_seed(tokens)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(*shape, device="cuda", generator=generator)

    own = (1 - shared_weight**2) ** 0.5
    direction = normal(batch, 1, heads, 64)
    norms = torch.linspace(0.5, 2, heads, device="cuda")[:, None] * normal(batch, tokens, heads, 1, std=0.3).exp()
    q, k = (norms * (shared_weight * direction + own * normal(batch, tokens, heads, 64)) for _ in range(2))
    v = k / 2 + normal(batch, tokens, heads, 64)
    lr = BASE_LR[operator] * torch.sigmoid(normal(batch, tokens, heads)) / 64
    scale = (1 / torch.arange(1, mini_batch + 1, device="cuda") + normal(mini_batch, std=0.02)).clamp_min(0)
    outer = (1 + normal(heads, 64, std=0.1), normal(heads, 64, std=0.1))
    weights = (normal(heads, *shape, std=0.02) for shape in SHAPES[operator])
    state = OPERATORS[operator].init_state(*weights, batch=batch, mini_batch=mini_batch)
    return Case(q.bfloat16(), k.bfloat16(), v.bfloat16(), lr, scale, *outer, state)


def prompt(kernel: ForwardKernel, tokens: int, **options: Any) -> list[Any]:
    return arguments(kernel.operator, tokens, device="cuda", mini_batch=kernel.mini_batch, **options)


hopper = pytest.mark.parametrize("kernel", [*LINEAR, *MLP], indirect=True)


@hopper
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize(
    ("tokens", "batch", "heads"),
    [(1, 1, 1), (5, 3, 7), (15, 3, 7), (16, 3, 7), (17, 3, 7), (32, 5, 32), (96, 3, 7), (333, 3, 7), (1024, 1, 1)],
)
def test_equals_the_reference(kernel, poisoned, tokens, batch, heads, rotate):
    args = prompt(kernel, tokens, batch=batch, heads=heads)
    found = kernel.forward(*args, start=0, rope=rotate)
    assert_matches(kernel.operator, *found, exact(kernel.operator, args, rotate), rotate)


@hopper
@pytest.mark.parametrize("split", [3, 16, 21, 48])
def test_two_pieces_with_rope_are_the_whole(kernel, split):
    args = prompt(kernel, 90)
    head, state = kernel.forward(*(x[:, :split] for x in args[:4]), *args[4:], rope=True)
    tail, state = kernel.forward(*(x[:, split:] for x in args[:4]), *args[4:7], state, rope=True)
    expected = exact(kernel.operator, args, rotate=True)
    assert_matches(kernel.operator, torch.cat((head, tail), 1), state, expected, rotate=True)


@hopper
def test_error_does_not_grow_at_other_rates(kernel):
    options = {"linear": {"shared_weight": 0.9, "lr_factor": 0.1}, "mlp": {"lr_factor": 10.0}}[kernel.operator]
    args = prompt(kernel, 4096, batch=1, heads=2, **options)
    found, expected = kernel.forward(*args, start=0), exact(kernel.operator, args)
    parts = [relative_error(*pair) for pair in zip(found[0].chunk(4, 1), expected[0].chunk(4, 1), strict=True)]
    assert max(parts) < ERROR
    assert parts[-1] < GROWTH * parts[0]


@pytest.mark.parametrize("kernel", LINEAR[:2], indirect=True)
@pytest.mark.parametrize("factor", [0.0, 1e-3, 30.0])
def test_extreme_tokens(kernel, factor):
    q, k, v, *rest = prompt(kernel, 64, batch=1, heads=2)
    args = [q * factor, k * factor, v * factor, *rest]
    assert_matches("linear", *kernel.forward(*args), exact("linear", args))


@hopper
def test_a_last_scale_of_zero_keeps_the_weights(kernel):
    args = prompt(kernel, 70)
    args[4][-1] = 0  # the TTT-MLP kernel divides by it
    out, state = kernel.forward(*args, start=0)
    assert_matches(kernel.operator, out, state, exact(kernel.operator, args))
    for name in OPS[kernel.operator].OPERATOR.weights:
        assert relative_error(getattr(state, name), getattr(args[-1], name)) < 1e-6


@hopper
def test_strided_tokens_of_one_projection(kernel):
    q, k, v, *rest = prompt(kernel, 70, heads=8)
    out, state = kernel.forward(
        *torch.stack((q, k, v), 3).transpose(0, 1).contiguous().transpose(0, 1).unbind(3), *rest
    )
    expected, after = kernel.forward(q, k, v, *rest)
    assert all(map(torch.equal, (out, *state), (expected, *after)))


@hopper
def test_a_cuda_graph_and_a_compiled_call_give_the_same_bits(kernel):
    args = prompt(kernel, 100)
    call = lambda *x: kernel.forward(*x, start=0)[0]  # noqa: E731
    expected = call(args[0].flip(1), *args[1:])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(*args)
    args[0].copy_(args[0].flip(1))
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, expected)
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(*args), expected)


@hopper
@pytest.mark.parametrize("tokens", [7, 64, 100])
def test_in_place_it_leaves_the_same_bits(kernel, tokens):
    args = prompt(kernel, tokens)
    expected, after = kernel.forward(*args, start=0)
    state = clone(args[-1])
    out, same = kernel.forward(*args[:-1], state, start=0, inplace=True)
    assert same is state
    assert all(map(torch.equal, (out, *state), (expected, *after)))


@pytest.mark.parametrize("shared_weight", [0.5, 0.9])
@pytest.mark.parametrize("tokens", [2048, 8192, 32768])
def test_error_does_not_grow_with_length(kernel, tokens, shared_weight, record_property):
    args = trained(kernel, 1, tokens, 4, shared_weight)
    (out, state), (out_exact, state_exact) = kernel.forward(*args, start=0), exact(kernel.operator, list(args))
    quarters = [relative_error(*pair) for pair in zip(out.chunk(4, 1), out_exact.chunk(4, 1), strict=True)]
    weights = OPS[kernel.operator].OPERATOR.weights
    errors = {name: relative_error(getattr(state, name), getattr(state_exact, name)) for name in weights}
    errors["out"] = relative_error(out, out_exact)
    record_property("relative errors", errors | {"quarters of out": quarters})
    print(errors, quarters)
    assert errors.pop("out") < ERROR
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


def test_two_runs_are_bitwise_equal_and_keep_the_given_state(kernel):
    args = trained(kernel, 3, 1000, 50, 0.5)
    before = clone(args.state)
    (out, state), (again, state_again) = (kernel.forward(*args, start=0) for _ in range(2))
    assert torch.equal(out, again)
    assert all(map(torch.equal, state, state_again))
    assert all(map(torch.equal, args.state, before))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["q", "k", "v", "lr", "weight"])
def test_nan_and_infinity_stay_in_their_head(kernel, name, bad):
    args = trained(kernel, 3, 50, 6, 0.5)
    clean = kernel.forward(*args, start=0)
    out, state = kernel.forward(*with_bad_value(kernel.operator, args, name, bad), start=0)
    others = torch.ones(3, 6, dtype=torch.bool, device="cuda")
    others[1, 2] = False
    assert torch.equal(out.transpose(1, 2)[others], clean[0].transpose(1, 2)[others])
    assert all(torch.equal(a[others], b[others]) for a, b in zip(state[:-1], clean[1][:-1], strict=True))
    assert not out[1, :, 2].isfinite().all()


def with_bad_value(operator: str, args: Case, name: str, bad: float) -> Case:
    if name == "weight":
        weight = OPS[operator].OPERATOR.weights[0]
        changed = getattr(args.state, weight).clone()
        changed[1, 2, 30, 40] = bad
        return args._replace(state=args.state._replace(**{weight: changed}))
    changed = getattr(args, name).clone()
    changed[1, 20, 2, ...] = bad
    return args._replace(**{name: changed})
