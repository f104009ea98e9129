"""Prompts of TTT-MLP's forward, and how close its results must be to the float64 reference."""

import torch
from torch import Tensor

from tests.tk_kernels.tolerances import OUTPUT_ERROR, relative_error
from tk_kernels.reference.layer import rope
from tk_kernels.ttt_mlp import reference
from tk_kernels.ttt_mlp.reference import MLPState

STATE_ERROR = 5e-3  # of the float32 state: its updates are products of bfloat16, 3e-3 of what has changed
ERROR = OUTPUT_ERROR[torch.bfloat16]


def arguments(
    tokens: int,
    *,
    batch: int = 2,
    heads: int = 3,
    device: str = "cpu",
    fast: float = 1.0,
    mini_batch: int = 16,
) -> list:
    """Trained-looking arguments of forward: keys and queries share a direction, values follow keys."""
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(*shape, generator=generator)

    shared = normal(batch, 1, heads, 64, std=0.7)
    q, k = (shared + normal(batch, tokens, heads, 64, std=0.7) for _ in range(2))
    v = normal(batch, tokens, heads, 64) + k / 2
    lr = fast * 0.1 * torch.sigmoid(normal(batch, tokens, heads)) / 64
    scale = (1 / torch.arange(1, mini_batch + 1) + normal(mini_batch, std=0.02)).clamp_min(0)
    outer = (1 + normal(heads, 64, std=0.1), normal(heads, 64, std=0.1))
    weights = (normal(heads, *shape, std=0.02) for shape in ((64, 256), (1, 256), (256, 64), (1, 64)))
    state = reference.init_state(*weights, batch, mini_batch)
    moved = [x.to(device) for x in (q.bfloat16(), k.bfloat16(), v.bfloat16(), lr, scale, *outer)]
    return [*moved, MLPState(*(x.to(device) for x in state))]


def exact(args: list, start: int = 0, rotate: bool = False) -> tuple[Tensor, MLPState]:
    """The float64 reference of the same arguments."""
    *tensors, state = args
    q, k, *rest = (x.double() for x in tensors)
    if rotate:
        position = (start + torch.arange(q.shape[1], device=q.device)) % len(args[4])
        q, k = rope(q, position), rope(k, position)
    wide = MLPState(*(x.double() for x in state[:-1]), state.position)
    return reference.forward(q, k, *rest, wide, start=start)


def pending_rows(state: MLPState) -> list[Tensor]:
    count = int(state.position[0])
    return [rows[:, :, :count] for rows in state[4:8]]


def assert_matches(out: Tensor, state: MLPState, expected: tuple[Tensor, MLPState]) -> None:
    assert relative_error(out, expected[0]) < ERROR
    assert torch.equal(state.position, expected[1].position)
    for ours, theirs in zip(state[:4], expected[1][:4], strict=True):
        assert relative_error(ours, theirs) < STATE_ERROR
    for ours, theirs in zip(pending_rows(state), pending_rows(expected[1]), strict=True):
        assert relative_error(ours, theirs) < ERROR
    assert all(torch.isfinite(x).all() for x in state)
