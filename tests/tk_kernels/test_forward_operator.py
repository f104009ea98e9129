"""Does a forward operator refuse what the kernel cannot take, and hand a begun mini-batch's rest to the reference?"""

import pytest
import torch

from tests.tk_kernels.tolerances import relative_error
from tk_kernels.forward.operator import HEAD_DIM, check_arguments, forward_from, wide
from tk_kernels.reference.layer import rope
from tk_kernels.ttt_linear import ops as linear_ops
from tk_kernels.ttt_linear import reference
from tk_kernels.ttt_linear.reference import LinearState
from tk_kernels.ttt_mlp import ops as mlp_ops
from tk_kernels.ttt_mlp import reference as mlp_reference

MINI_BATCH, HEADS, D = 16, 2, 8


def arguments(tokens: int, start: int) -> tuple:
    """Float64 tokens, outer parameters and a state at position start."""
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k, v = (normal(2, start + tokens, HEADS, D) for _ in range(3))
    lr = torch.rand(2, start + tokens, HEADS, generator=generator, dtype=torch.float64) / D
    outer = (1 / torch.arange(1.0, MINI_BATCH + 1, dtype=torch.float64), normal(HEADS, D), normal(HEADS, D))
    state = reference.init_state(normal(HEADS, D, D), normal(HEADS, 1, D), 2, MINI_BATCH, torch.float64)
    begun = slice(start)
    _, state = reference.forward(rotated(q)[:, begun], rotated(k)[:, begun], v[:, begun], lr[:, begun], *outer, state)
    return tuple(x[:, start:] for x in (q, k, v, lr)), outer, state


def rotated(x: torch.Tensor, start: int = 0) -> torch.Tensor:
    return rope(x, (start + torch.arange(x.shape[1])) % MINI_BATCH)


def exact(tokens: tuple, outer: tuple, state: LinearState, start: int) -> tuple[torch.Tensor, LinearState]:
    q, k, v, lr = tokens
    return reference.forward(rotated(q, start), rotated(k, start), v, lr, *outer, state, start=start)


@pytest.mark.parametrize(
    ("tokens", "start", "to_kernel"), [(40, 0, 40), (40, 5, 29), (11, 5, 0), (3, 5, 0), (0, 5, 0), (12, 5, 1)]
)
def test_tokens_of_a_begun_mini_batch_go_to_the_reference(tokens, start, to_kernel):
    inputs, outer, state = arguments(tokens, start)
    seen = []

    def aligned(tokens, outer, state, rope):
        assert rope
        assert int(state.position[0]) == 0
        seen.append(tokens[0].shape[1])
        return exact(tokens, outer, state, 0)

    def in_float64(q, k, v, lr, *rest, start):  # the reference is called with float32 tokens
        return reference.forward(q.double(), k.double(), v.double(), lr.double(), *rest, start=start)

    out, after = forward_from(start, inputs, outer, state, True, in_float64, aligned)
    expected, expected_after = exact(inputs, outer, state, start)
    assert seen == [to_kernel][: bool(to_kernel)]
    assert out.shape == expected.shape
    for ours, theirs in zip((out, *after), (expected, *expected_after), strict=True):
        assert not theirs.numel() or relative_error(ours, theirs) < 1e-6


@pytest.mark.parametrize("tokens", [40, 11], ids=["both", "reference alone"])
def test_bfloat16_tokens_are_rounded_as_the_kernel_rounds_them(tokens):
    """The reference reads float32 of q and k rounded after RoPE; the kernel reads the tokens as they are."""
    start, begun = 5, 11
    (*qkv, lr), outer, state = arguments(tokens, start)
    q, k, v = (x.bfloat16() for x in qkv)
    lr, outer = lr.float(), tuple(x.float() for x in outer)
    state = LinearState(*(x.float() for x in state[:4]), state.position)
    read, given = [], []

    def spied(*inputs, start):
        read.extend(inputs[:4])
        return reference.forward(*inputs, start=start)

    def aligned(tokens, outer, state, rope):
        given.extend(tokens)
        return torch.zeros_like(tokens[0]), state

    out, _ = forward_from(start, (q, k, v, lr), outer, state, True, spied, aligned)
    assert (out.dtype, out.shape) == (torch.bfloat16, q.shape)
    first = (rotated(q.float(), start).bfloat16(), rotated(k.float(), start).bfloat16(), v, lr)
    for x, expected in zip(read, first, strict=True):
        assert x.dtype == torch.float32
        assert torch.equal(x, expected[:, :begun].float())
    for x, expected in zip(given, (q, k, v, lr) if tokens > begun else (), strict=True):
        assert x.dtype == expected.dtype
        assert torch.equal(x, expected[:, begun:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_kernel_reads_float32_and_contiguous(dtype):
    x = torch.arange(6.0, dtype=dtype).view(2, 3)
    for ours, given in zip(wide(x, x.T), (x, x.T), strict=True):
        assert ours.dtype == torch.float32
        assert ours.is_contiguous()
        assert torch.equal(ours, given.float())


def operator_arguments(layer: str) -> tuple:
    """What the operator of a layer takes: 20 tokens of two heads, an outer loop of mini-batches of 16, a state."""
    q, lr = torch.zeros(1, 20, 2, HEAD_DIM, dtype=torch.bfloat16), torch.zeros(1, 20, 2)
    outer = (torch.ones(16), torch.ones(2, HEAD_DIM), torch.zeros(2, HEAD_DIM))
    module, operator = {"linear": (reference, linear_ops), "mlp": (mlp_reference, mlp_ops)}[layer]
    weights = [torch.zeros(2, *(shape if len(shape) == 2 else (1, *shape))) for shape in operator.WEIGHTS.values()]
    return operator, (q, q.clone(), q.clone(), lr), outer, module.init_state(*weights, 1, 16)


def test_tensors_on_another_device_are_named():
    operator, tokens, outer, state = operator_arguments("linear")
    tensors = dict(zip(("q", "k", "v", "lr", "token_scale", "ln_weight", "ln_bias"), (*tokens, *outer), strict=True))
    check_arguments(tokens, outer, state, operator.WEIGHTS, operator.MINI_BATCHES)
    for name in [*list(tensors)[1:], "state.W", "state.b"]:
        moved = {each: x.to("meta") if each == name else x for each, x in tensors.items()}
        field = name.removeprefix("state.")
        there = state._replace(**{field: getattr(state, field).to("meta")}) if field != name else state
        first, rest = tuple(moved.values())[:4], tuple(moved.values())[4:]
        with pytest.raises(ValueError, match=f"^{name} is on meta: q is on cpu$"):
            check_arguments(first, rest, there, operator.WEIGHTS, operator.MINI_BATCHES)


@pytest.mark.parametrize("start", [-1, 16])
@pytest.mark.parametrize("layer", ["linear", "mlp"])
def test_a_start_outside_of_the_mini_batch_is_named(layer, start):
    operator, tokens, outer, state = operator_arguments(layer)
    with pytest.raises(ValueError, match=f"^start is {start}: expected a position inside the mini-batch, 0 to 15$"):
        operator.forward(*tokens, *outer, state, start=start)
