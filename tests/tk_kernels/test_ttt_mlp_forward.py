"""The TTT-MLP forward kernel computes what its float64 reference does, and names what it cannot take."""

import pytest
import torch

from tests.tk_kernels.mlp_prompts import ERROR, arguments, assert_matches, exact
from tests.tk_kernels.tolerances import relative_error
from tk_kernels.reference.token_rows import clone
from tk_kernels.ttt_mlp import ops
from tk_kernels.ttt_mlp.reference import MLPState

gpu = pytest.mark.gpu


@pytest.fixture
def device() -> str:
    reason = ops.available()
    if reason:
        pytest.skip(reason)
    return "cuda"


@pytest.fixture(params=ops.KERNELS)
def mini_batch(request: pytest.FixtureRequest) -> int:
    """Each has a kernel."""
    reason = ops.available(request.param)
    if reason:
        pytest.skip(reason)
    return request.param


@gpu
@pytest.mark.parametrize("tokens", [1, 5, 16, 17, 48, 327])
@pytest.mark.parametrize("rotate", [False, True])
def test_matches_the_reference(device: str, mini_batch: int, tokens: int, rotate: bool) -> None:
    args = arguments(tokens, device=device, mini_batch=mini_batch)
    assert_matches(*ops.forward(*args, start=0, rope=rotate), exact(args, rotate=rotate))


@gpu
def test_many_heads(device: str, mini_batch: int) -> None:
    args = arguments(32, batch=5, heads=32, device=device, mini_batch=mini_batch)
    assert_matches(*ops.forward(*args, start=0), exact(args))


@gpu
@pytest.mark.parametrize("fast", [1.0, 10.0])
def test_error_does_not_grow_with_tokens(device: str, mini_batch: int, fast: float) -> None:
    args = arguments(4096, batch=1, heads=2, device=device, fast=fast, mini_batch=mini_batch)
    out, _ = ops.forward(*args, start=0)
    expected, _ = exact(args)
    parts = [relative_error(*pair) for pair in zip(out.split(1024, 1), expected.split(1024, 1), strict=True)]
    assert max(parts) < ERROR
    assert parts[-1] < 1.5 * parts[0]


@gpu
def test_a_last_scale_of_zero_keeps_the_state(device: str, mini_batch: int) -> None:
    args = arguments(50, device=device, mini_batch=mini_batch)
    args[4][-1] = 0  # the kernel divides by it
    out, state = ops.forward(*args, start=0)
    assert_matches(out, state, exact(args))
    assert all(torch.equal(new, old) for new, old in zip(state[:4], args[-1][:4], strict=True))


@gpu
def test_continues_a_begun_mini_batch(device: str, mini_batch: int) -> None:
    args = arguments(75, device=device, mini_batch=mini_batch)
    head, state = ops.forward(*(x[:, :21] for x in args[:4]), *args[4:], rope=True)
    tail, state = ops.forward(*(x[:, 21:] for x in args[:4]), *args[4:7], state, rope=True)
    assert_matches(torch.cat((head, tail), 1), state, exact(args, rotate=True))


@gpu
def test_strided_tokens(device: str, mini_batch: int) -> None:
    args = arguments(40, device=device, mini_batch=mini_batch)
    packed = torch.stack(args[:3], 3).transpose(0, 1).contiguous().transpose(0, 1)  # [B, T, H, 3, D]
    strided = [packed[:, :, :, i] for i in range(3)]
    out, state = ops.forward(*strided, *args[3:], start=0)
    plain, plain_state = ops.forward(*args, start=0)
    assert torch.equal(out, plain)
    assert all(torch.equal(a, b) for a, b in zip(state, plain_state, strict=True))


@gpu
def test_two_runs_are_equal_and_leave_the_state(device: str, mini_batch: int) -> None:
    args = arguments(203, device=device, mini_batch=mini_batch)
    before = [x.clone() for x in args[-1]]
    first, second = ops.forward(*args, start=0), ops.forward(*args, start=0)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(args[-1], before, strict=True))


@gpu
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_head_stays_alone(device: str, mini_batch: int, bad: float) -> None:
    args = arguments(50, device=device, mini_batch=mini_batch)
    clean, _ = ops.forward(*args, start=0)
    args[1][0, 20, 1] = bad
    out, state = ops.forward(*args, start=0)
    others = [0, 2]
    assert torch.equal(out[:, :, others], clean[:, :, others])
    assert torch.equal(out[1], clean[1])
    assert not torch.isfinite(state.W1[0, 1]).all()


@gpu
def test_in_a_cuda_graph_and_compiled(device: str, mini_batch: int) -> None:
    args = arguments(32, device=device, mini_batch=mini_batch)
    expected, _ = ops.forward(*args, start=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = ops.forward(*args, start=0)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, expected)
    compiled = torch.compile(lambda *x: ops.forward(*x, start=0)[0], fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*args), expected)


@gpu
@pytest.mark.parametrize("tokens", [7, 64, 100])
def test_in_place_it_leaves_the_same_bits(device: str, mini_batch: int, tokens: int) -> None:
    args = arguments(tokens, device=device, mini_batch=mini_batch)
    expected, after = ops.forward(*args, start=0)
    state = clone(args[-1])
    out, same = ops.forward(*args[:-1], state, start=0, inplace=True)
    assert same is state
    assert all(map(torch.equal, (out, *state), (expected, *after)))


def test_shapes_without_a_gpu() -> None:
    args = [x.to("meta") for x in arguments(20)[:-1]]
    state = MLPState(*(x.to("meta") for x in arguments(20)[-1]))
    out, new = ops.forward(*args, state, start=0)
    assert out.shape == args[0].shape
    assert [x.shape for x in new] == [x.shape for x in state]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.__setitem__(0, a[0][..., :32]), r"q has shape .*\(64, 96, 128\)"),
        (lambda a: a.__setitem__(0, a[0].double()), r"q.dtype is torch.float64"),
        (lambda a: a.__setitem__(1, a[1].half()), r"k.dtype is torch.float16"),
        (lambda a: a.__setitem__(2, a[2][:, :3]), r"v has shape"),
        (lambda a: a.__setitem__(2, a[2].mT.contiguous().mT), r"v has strides .*D contiguous"),
        (lambda a: a.__setitem__(3, a[3][:, :3]), r"lr has shape"),
        (lambda a: a.__setitem__(4, a[4][:3]), "mini-batch, is 3: must be 4 to 64"),
        (lambda a: a.__setitem__(5, a[5][:1]), r"ln_weight has shape"),
        (lambda a: a.__setitem__(7, a[7]._replace(W1=a[7].W1[..., :128])), r"state.W1 has shape"),
        (lambda a: a.__setitem__(7, a[7]._replace(W2=a[7].W2.double())), r"state.W2.dtype is torch.float64"),
        (
            lambda a: a.__setitem__(7, a[7]._replace(position=torch.tensor([0, 3], dtype=torch.int32))),
            r"state.position holds \[0, 3\]",
        ),
    ],
)
def test_refuses_by_name(change: object, message: str) -> None:
    args = arguments(20)
    change(args)
    with pytest.raises(ValueError, match=message):
        ops.forward(*args)


def test_unavailable_is_a_sentence() -> None:
    reason = ops.available()
    assert torch.cuda.is_available() or reason
