"""The TTT-Linear forward kernel computes the layer at any length and schedule, and names what it cannot take."""

import functools

import pytest
import torch
from tolerances import OUTPUT_ERROR, relative_error

from tk_kernels.reference.token_rows import clone
from tk_kernels.ttt_linear import ops, reference

OUTPUT = OUTPUT_ERROR[torch.bfloat16]
# The master state is float32; its error is that of the bfloat16 operands of the products that update it.
STATE = 5e-3
SCHEDULES = ((2, 4), (4, 1))

gpu = [pytest.mark.gpu, pytest.mark.skipif(ops.available() != "", reason=ops.available() or "it is available")]
on_gpu = lambda test: functools.reduce(lambda decorated, mark: mark(decorated), gpu, test)  # noqa: E731


def arguments(batch, tokens, heads, correlation=0.0, device="cuda", lr_scale=1.0, mini_batch=16):
    """Random q, k, v (with this correlation between tokens), lr, token_scale, ln_weight, ln_bias, state."""
    generator = torch.Generator(device).manual_seed(tokens)
    normal = functools.partial(torch.randn, device=device, generator=generator)
    common, fresh = correlation, (1 - correlation**2) ** 0.5
    shape = (batch, tokens, heads, 64)
    q, k, v = ((common * normal(batch, 1, heads, 64) + fresh * normal(shape)).bfloat16() for _ in range(3))
    lr = lr_scale * torch.sigmoid(normal(shape[:3])) / 64
    scale = (1 / torch.arange(1, mini_batch + 1, device=device) + 0.01 * normal(mini_batch)).clamp_min(0)
    weight, bias = 1 + 0.1 * normal(heads, 64), 0.1 * normal(heads, 64)
    W, b = 0.02 * normal(heads, 64, 64) + 0.01, 0.1 * normal(heads, 1, 64)  # W's mean over columns is not 0
    return q, k, v, lr, scale, weight, bias, reference.init_state(W, b, batch, mini_batch)


def exact(q, k, v, lr, scale, weight, bias, state):
    """The reference in float64, from the same rounded inputs."""
    wide = reference.LinearState(*(x.double() for x in state[:4]), state.position)
    return reference.forward(*(x.double() for x in (q, k, v, lr, scale, weight, bias)), wide)


def check(found, expected):
    (out, state), (out_exact, state_exact) = found, expected
    assert relative_error(out, out_exact) < OUTPUT
    assert relative_error(state.W, state_exact.W) < STATE
    assert relative_error(state.b, state_exact.b) < STATE
    assert torch.equal(state.position.cpu(), state_exact.position.cpu())
    valid = int(state.position[0])
    assert relative_error(state.k_rows[:, :, :valid], state_exact.k_rows[:, :, :valid]) < 1e-6
    assert relative_error(state.g_rows[:, :, :valid], state_exact.g_rows[:, :, :valid]) < STATE
    assert state.k_rows.isfinite().all()
    assert state.g_rows.isfinite().all()


@pytest.fixture(params=SCHEDULES, ids=str)
def schedule(request, monkeypatch):
    monkeypatch.setattr(ops, "schedule", lambda *_: request.param)
    return request.param


@on_gpu
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 96, 333])
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (3, 7)])
def test_equals_the_reference(schedule, poisoned, batch, tokens, heads):
    inputs = arguments(batch, tokens, heads)
    check(ops.forward(*inputs), exact(*inputs))


@on_gpu
@pytest.mark.parametrize("tokens", [1, 17, 32, 161, 1024])
def test_mini_batches_of_32(poisoned, tokens):
    inputs = arguments(2, tokens, 3, mini_batch=32)
    check(ops.forward(*inputs), exact(*inputs))


@on_gpu
@pytest.mark.parametrize(("correlation", "lr_scale"), [(0.0, 1.0), (0.5, 1.0), (0.9, 0.1)])
def test_error_does_not_grow_with_length(schedule, correlation, lr_scale):
    inputs = arguments(1, 8192, 4, correlation=correlation, lr_scale=lr_scale)
    check(ops.forward(*inputs), exact(*inputs))


@on_gpu
def test_two_runs_are_bitwise_equal(schedule):
    inputs = arguments(3, 517, 5)
    (out, state), (again, state_again) = ops.forward(*inputs), ops.forward(*inputs)
    assert torch.equal(out, again)
    assert all(torch.equal(a, b) for a, b in zip(state, state_again, strict=True))


@on_gpu
@pytest.mark.parametrize("cut", [3, 16, 30, 48])
def test_two_pieces_equal_the_whole(cut):
    *tokens, scale, weight, bias, state = arguments(2, 90, 3)
    first, middle = ops.forward(*(x[:, :cut] for x in tokens), scale, weight, bias, state)
    second, end = ops.forward(*(x[:, cut:] for x in tokens), scale, weight, bias, middle)
    expected = exact(*tokens, scale, weight, bias, state)
    check((torch.cat((first, second), 1), end), expected)


@on_gpu
def test_nan_and_infinity_stay_in_their_head(schedule):
    inputs = arguments(2, 80, 8)
    clean, clean_state = ops.forward(*inputs)
    for bad in (float("nan"), float("inf")):
        k = inputs[1].clone()
        k[1, 20, 3] = bad
        out, state = ops.forward(inputs[0], k, *inputs[2:])
        others = torch.ones(2, 8, dtype=torch.bool, device="cuda")
        others[1, 3] = False
        assert torch.equal(out.transpose(1, 2)[others], clean.transpose(1, 2)[others])
        assert torch.equal(state.W[others], clean_state.W[others])
        assert out[1, 32:, 3].isnan().any()


@on_gpu
def test_extreme_inputs_are_exact_enough(schedule):
    q, k, v, *rest = arguments(1, 64, 2)
    for factor in (0.0, 1e-3, 30.0):
        inputs = (q * factor, k * factor, v * factor, *rest)
        check(ops.forward(*inputs), exact(*inputs))


@on_gpu
def test_token_scale_of_zero_at_the_end_leaves_the_state(schedule):
    *head, scale, weight, bias, state = arguments(1, 70, 2)
    scale[-1] = 0
    inputs = (*head, scale, weight, bias, state)
    found = ops.forward(*inputs)
    check(found, exact(*inputs))
    assert relative_error(found[1].W, state.W) < 1e-6


@on_gpu
def test_strided_slices_of_one_projection(schedule):
    q, k, v, *rest = arguments(2, 70, 8)
    fused = torch.stack((q, k, v), 2)
    out, state = ops.forward(*fused.unbind(2), *rest)
    expected, expected_state = ops.forward(q, k, v, *rest)
    assert torch.equal(out, expected)
    assert torch.equal(state.W, expected_state.W)


def turned(x):
    """RoPE by its definition: theta 10000, position in the mini-batch, interleaved pairs."""
    out = torch.empty_like(x)
    for token in range(x.shape[1]):
        angle = (token % 16) * 10000.0 ** (-torch.arange(0, 64, 2, device=x.device).double() / 64)
        a, b = x[:, token, :, 0::2].double(), x[:, token, :, 1::2].double()
        out[:, token, :, 0::2] = a * angle.cos() - b * angle.sin()
        out[:, token, :, 1::2] = a * angle.sin() + b * angle.cos()
    return out


@on_gpu
@pytest.mark.parametrize("cut", [0, 5])
def test_rope_inside_the_kernel(schedule, cut):
    q, k, v, lr, *rest, state = arguments(2, 150, 3)
    tokens, parts = (q, k, v, lr), []
    for at in (slice(0, cut), slice(cut, None)):
        out, state = ops.forward(*(x[:, at] for x in tokens), *rest, state, rope=True)
        parts.append(out)
    expected = exact(turned(q), turned(k), v, lr, *rest, arguments(2, 150, 3)[-1])
    check((torch.cat(parts, 1), state), expected)


@on_gpu
def test_given_state_is_left_as_it_is():
    inputs = arguments(1, 40, 2)
    before = [x.clone() for x in inputs[-1]]
    ops.forward(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(inputs[-1], before, strict=True))


@on_gpu
def test_graph_replays_on_new_inputs():
    inputs = arguments(1, 100, 4)
    ops.forward(*inputs, start=0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = ops.forward(*inputs, start=0)
    inputs[0].copy_(arguments(1, 100, 4)[0].flip(1))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, ops.forward(*inputs, start=0)[0])


@on_gpu
@pytest.mark.parametrize("tokens", [7, 48, 100])
def test_in_place_it_leaves_the_same_bits(tokens):
    inputs = arguments(2, tokens, 4)
    expected, after = ops.forward(*inputs, start=0)
    state = clone(inputs[-1])
    out, same = ops.forward(*inputs[:-1], state, start=0, inplace=True)
    assert same is state
    assert all(map(torch.equal, (out, *state), (expected, *after)))


@on_gpu
def test_compiles_without_graph_breaks():
    inputs = arguments(1, 48, 4)
    compiled = torch.compile(lambda *x: ops.forward(*x, start=0)[0] * 2, fullgraph=True)
    assert torch.equal(compiled(*inputs), ops.forward(*inputs, start=0)[0] * 2)


def test_shapes_without_running():
    with torch._subclasses.FakeTensorMode():
        q, W, b = torch.empty(2, 40, 3, 64, dtype=torch.bfloat16), torch.empty(3, 64, 64), torch.empty(3, 1, 64)
        lr, scale, ln = torch.empty(2, 40, 3), torch.empty(16), torch.empty(3, 64)
        out, state = ops.forward(q, q, q, lr, scale, ln, ln, reference.init_state(W, b, 2), start=0)
    assert (tuple(out.shape), out.dtype) == ((2, 40, 3, 64), torch.bfloat16)
    assert [tuple(x.shape) for x in state] == [(2, 3, 64, 64), (2, 3, 64), *[(2, 3, 16, 64)] * 2, (2,)]
    assert [x.dtype for x in state] == [*[torch.float32] * 4, torch.int32]


@pytest.mark.parametrize(
    ("index", "change", "message"),
    [
        (0, lambda x: x[..., :32], r"q has shape .*\(64, 96, 128\)"),
        (0, torch.Tensor.double, r"q\.dtype is torch\.float64: .*bfloat16"),
        (1, lambda x: x[:, :10], r"k has shape \(1, 10, 2, 64\)"),
        (2, torch.Tensor.half, r"v\.dtype is torch\.float16"),
        (2, lambda x: x.transpose(2, 3).contiguous().transpose(2, 3), r"v has strides .*D contiguous"),
        (3, lambda x: x[:, :, :1], r"lr has shape"),
        (4, lambda x: x[:3], "mini-batch, is 3: must be 4 to 64"),
        (5, lambda x: x[:1], r"ln_weight has shape"),
        (7, lambda x: x._replace(W=x.W.double()), r"state\.W\.dtype is torch\.float64"),
    ],
)
def test_what_is_not_supported_is_named(index, change, message):
    inputs = list(arguments(1, 20, 2, device="cpu"))
    inputs[index] = change(inputs[index])
    with pytest.raises(ValueError, match=message):
        ops.forward(*inputs)


def test_address_that_tma_cannot_take_is_named():
    inputs = list(arguments(1, 20, 2, device="cpu"))
    storage = torch.zeros(inputs[2].numel() + 4, dtype=torch.bfloat16)
    inputs[2] = storage[4:].view(inputs[2].shape)
    with pytest.raises(ValueError, match="v begins at element 4"):
        ops.forward(*inputs, backend="thunderkittens")


def test_traced_without_graph_breaks():
    inputs = arguments(1, 48, 4, device="cpu")
    graphs = []

    def record(graph, example_inputs):
        graphs.append(graph)
        return lambda *_: (torch.zeros(()),)

    torch.compile(lambda *x: ops.forward(*x, start=0)[0], fullgraph=True, backend=record)(*inputs)
    assert "linear_forward" in graphs[0].code


def test_schedule_fills_the_processors():
    assert ops.schedule(32, 16, 132) == (4, 1)
    assert ops.schedule(512, 16, 132) == (2, 4)
    assert ops.schedule(512, 32, 132) == (4, 1)
