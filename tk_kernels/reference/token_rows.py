"""Outputs and updates of an affine layer of inner model f, at any token of a mini-batch.

A state holds W and b at the mini-batch's start, and rows, or gradient sums dW and db, of the tokens so far.
Rows: x_rows [B, H, m, D] of inputs x_j, g_rows [B, H, m, F] of lr_j times the loss's gradient G_j at the output.
Other shapes: x [B, H, n, D] for n tokens; W, dW [B, H, D, F]; b, db [B, H, F]; positions [B, n] int64.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

State = TypeVar("State", bound=tuple)  # weights at the mini-batch's start, and a row per token so far


def write_rows_(rows: Tensor, x: Tensor, positions: Tensor) -> None:
    """Write x[b, :, i] to rows[b, :, positions[b, i]], for x [B, H, n, D] and rows [B, H, m, D]."""
    rows.scatter_(2, positions[:, None, :, None].expand_as(x), x)


def causal_scale(positions: Tensor, token_scale: Tensor) -> Tensor:
    """Return s [B, 1, n, m]: s[b, 0, i, j] = token_scale[p] if j <= p else 0; p = positions[b, i]."""
    rows = torch.arange(len(token_scale), device=token_scale.device)
    return torch.where(rows <= positions[..., None], token_scale[positions][..., None], 0)[:, None]


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x @ weight + bias.unsqueeze(-2)


def stepped_affine(x: Tensor, weight: Tensor, bias: Tensor, x_rows: Tensor, g_rows: Tensor, scale: Tensor) -> Tensor:
    """Return x_i @ W_i + b_i, [B, H, n, F]; this materializes each token's own weight W_i.

    x [B, H, n, D]. scale [B, 1, n, m]: the result of `causal_scale`.
    W_i = W - sum_j scale[i, j] * x_rows[j]^T @ g_rows[j], and b_i = b - sum_j scale[i, j] * g_rows[j].
    """
    steps = (x_rows.unsqueeze(-1) * g_rows.unsqueeze(-2)).flatten(-2)  # [B, H, m, D * F]
    weights = weight.unsqueeze(2) - (scale @ steps).unflatten(-1, weight.shape[2:])
    return (x.unsqueeze(-2) @ weights).squeeze(-2) + bias.unsqueeze(2) - scale @ g_rows


def apply_rows_(weight: Tensor, bias: Tensor, x_rows: Tensor, g_rows: Tensor, scale: Tensor) -> None:
    """Update in place: W -= scale * x_rows^T @ g_rows, b -= scale * sum(g_rows).

    scale [B, 1, 1, 1]: token_scale[m - 1] for sequences whose mini-batch is complete, 0 (no update) for others.
    """
    steps = (scale * x_rows).flatten(0, 1).mT
    weight.view(-1, *weight.shape[2:]).baddbmm_(steps, g_rows.flatten(0, 1), alpha=-1)
    bias.addcmul_(scale[..., 0], g_rows.sum(2), value=-1)


def add_to_sums_(dW: Tensor, db: Tensor, x: Tensor, g: Tensor) -> None:
    """Add one token, x [B, H, 1, D] and g = lr * G [B, H, 1, F]: dW += x^T @ g, db += g."""
    dW.view(-1, *dW.shape[2:]).baddbmm_(x.flatten(0, 1).mT, g.flatten(0, 1))
    db.add_(g.squeeze(2))


def apply_sums_(weight: Tensor, bias: Tensor, dW: Tensor, db: Tensor, scale: Tensor, ends: Tensor) -> None:
    """Update W -= scale * dW and b -= scale * db; then zero the sums of complete mini-batches.

    ends [B]: whether a sequence's mini-batch is complete. scale [B, 1, 1, 1]: token_scale[m - 1], or 0 if incomplete.
    """
    weight.addcmul_(scale, dW, value=-1)
    bias.addcmul_(scale[..., 0], db, value=-1)
    dW.masked_fill_(ends[:, None, None, None], 0)
    db.masked_fill_(ends[:, None, None], 0)


def rows_before(rows: Tensor, position: Tensor) -> Tensor:
    """Return a copy of rows [B, H, m, D] with zeros from each sequence's `position` [B] on."""
    index = torch.arange(rows.shape[2], device=rows.device)
    return torch.where((index < position[:, None])[:, None, :, None], rows, 0)


def summed_rows(x_rows: Tensor, g_rows: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
    """Return (dW, db) = (x_rows^T @ g_rows, sum(g_rows)) over rows before `position` [B]."""
    g = rows_before(g_rows, position)
    return rows_before(x_rows, position).mT @ g, g.sum(2)


def clone(state: State) -> State:
    """Return a contiguous copy of a state, so that in-place steps leave the original unchanged."""
    return mapped(state, lambda tensor: tensor.clone(memory_format=torch.contiguous_format))


def mapped(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return `state` with `function` applied to each tensor in nested tuples and dataclasses."""
    if isinstance(state, Tensor):
        return function(state)
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{field.name: mapped(getattr(state, field.name), function) for field in fields(state)})
    if isinstance(state, tuple):
        parts = [mapped(part, function) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state


def to_float64(state: Any) -> Any:
    """Return a state with its floating-point tensors in float64."""
    return mapped(state, lambda x: x.double() if x.is_floating_point() else x)


def overwrite(state: Any, after: Any) -> None:
    """Copy each tensor of `after` to the tensor in the same field of `state`."""
    for old, new in zip(_tensors(state), _tensors(after), strict=True):
        if old is not new:
            old.copy_(new)


def _tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    parts = [getattr(state, field.name) for field in fields(state)] if is_dataclass(state) else state
    return [x for part in parts for x in _tensors(part)] if isinstance(parts, list | tuple) else []
