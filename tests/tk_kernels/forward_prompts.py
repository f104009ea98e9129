"""Prompts for tests of the forward operators, and limits of the error against the float64 reference."""

from typing import Any

import torch
from torch import Tensor

from harness.measure.correctness import relative_error
from tests.tk_kernels.reference_cases import OPERATORS
from tests.tk_kernels.tensors import OUTPUT_ERROR
from tk_kernels.reference.layer import rope
from tk_kernels.reference.token_rows import to_float64
from tk_kernels.ttt_linear import ops as linear_ops
from tk_kernels.ttt_mlp import ops as mlp_ops

OPS: dict[str, Any] = {"linear": linear_ops, "mlp": mlp_ops}
ERROR = OUTPUT_ERROR[torch.bfloat16]
STATE_ERROR = 5e-3  # float32 state with updates from bfloat16 operands
ROWS_ERROR = {"linear": STATE_ERROR, "mlp": ERROR}  # gradient rows and X2 rows


def arguments(operator: str, tokens: int, **options: Any) -> list[Any]:
    return {"linear": linear_arguments, "mlp": mlp_arguments}[operator](tokens, **options)


def linear_arguments(
    tokens: int,
    *,
    batch: int = 2,
    heads: int = 3,
    device: str = "cpu",
    shared_weight: float = 0.0,
    lr_factor: float = 1.0,
    mini_batch: int = 16,
) -> list[Any]:
    """Return random positional arguments of TTT-Linear's forward, for heads of 64 channels.

    shared_weight: weight of a part of q, k and v that a sequence's tokens share; its square is their correlation.
    lr_factor: factor on the learning rates.
    """
    generator = torch.Generator(device).manual_seed(tokens)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(*shape, device=device, generator=generator)

    own = (1 - shared_weight**2) ** 0.5
    q, k, v = (shared_weight * normal(batch, 1, heads, 64) + own * normal(batch, tokens, heads, 64) for _ in range(3))
    lr = lr_factor * torch.sigmoid(normal(batch, tokens, heads)) / 64
    scale = (1 / torch.arange(1, mini_batch + 1, device=device) + normal(mini_batch, std=0.01)).clamp_min(0)
    outer = (1 + normal(heads, 64, std=0.1), normal(heads, 64, std=0.1))
    weights = (0.01 + normal(heads, 64, 64, std=0.02), normal(heads, 1, 64, std=0.1))  # column means of W are nonzero
    state = OPERATORS["linear"].init_state(*weights, batch=batch, mini_batch=mini_batch)
    return [q.bfloat16(), k.bfloat16(), v.bfloat16(), lr, scale, *outer, state]


def mlp_arguments(
    tokens: int,
    *,
    batch: int = 2,
    heads: int = 3,
    device: str = "cpu",
    lr_factor: float = 1.0,
    mini_batch: int = 16,
) -> list[Any]:
    """Return random positional arguments of TTT-MLP's forward, for heads of 64 channels.

    As in a trained model, q, k and v are correlated. lr_factor: factor on the learning rates.
    """
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(*shape, generator=generator)

    shared = normal(batch, 1, heads, 64, std=0.7)
    q, k = (shared + normal(batch, tokens, heads, 64, std=0.7) for _ in range(2))
    v = normal(batch, tokens, heads, 64) + k / 2
    lr = lr_factor * 0.1 * torch.sigmoid(normal(batch, tokens, heads)) / 64
    scale = (1 / torch.arange(1, mini_batch + 1) + normal(mini_batch, std=0.02)).clamp_min(0)
    outer = (1 + normal(heads, 64, std=0.1), normal(heads, 64, std=0.1))
    weights = (normal(heads, *shape, std=0.02) for shape in ((64, 256), (1, 256), (256, 64), (1, 64)))
    state = OPERATORS["mlp"].init_state(*weights, batch=batch, mini_batch=mini_batch)
    moved = [x.to(device) for x in (q.bfloat16(), k.bfloat16(), v.bfloat16(), lr, scale, *outer)]
    return [*moved, type(state)(*(x.to(device) for x in state))]


def exact(operator: str, args: list[Any], rotate: bool = False) -> tuple[Tensor, Any]:
    q, k, *rest, state = args
    if rotate:
        position = torch.arange(q.shape[1], device=q.device) % len(args[4])
        q, k = rope(q, position), rope(k, position)
    return OPERATORS[operator].forward(*(x.double() for x in (q, k, *rest)), to_float64(state), start=0)


def assert_matches(operator: str, out: Tensor, state: Any, expected: tuple[Tensor, Any], rotate: bool = False) -> None:
    assert relative_error(out, expected[0]) < ERROR
    limits = dict.fromkeys(state._fields, ROWS_ERROR[operator]) | {"k_rows": 1e-3 if rotate else 1e-6}
    assert_state(state, expected[1], limits | dict.fromkeys(OPS[operator].OPERATOR.weights, STATE_ERROR))


def assert_equal(found: tuple[Tensor, Any], expected: tuple[Tensor, Any], limit: float) -> None:
    (out, state), (exact_out, exact_state) = found, expected
    assert relative_error(out.to(exact_out.device), exact_out) < limit
    assert_state(state, exact_state, dict.fromkeys(state._fields, limit))


def assert_state(state: Any, expected: Any, limits: dict[str, float]) -> None:
    """Compare two states at one position; limits: the largest relative error of each field."""
    count = int(expected.position[0])
    assert state.position.tolist() == expected.position.tolist()
    for name, ours, theirs in zip(state._fields, state, expected, strict=True):
        assert ours.isfinite().all(), name
        pair = (ours[:, :, :count], theirs[:, :, :count]) if name.endswith("rows") else (ours, theirs)
        assert relative_error(pair[0].to(theirs.device), pair[1]) < limits[name], name
