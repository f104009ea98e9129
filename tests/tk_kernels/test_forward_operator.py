"""Does a forward operator hand the rest of a begun mini-batch to the reference, and all else to the kernel?"""

import pytest
import torch

from tests.tk_kernels.tolerances import relative_error
from tk_kernels.forward_operator import forward_from
from tk_kernels.reference_math import rope
from tk_kernels.ttt_linear import reference
from tk_kernels.ttt_linear.reference import LinearState

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
