"""The TTT-Linear forward kernel as a PyTorch operator: the function of `reference.forward` (form "dual") on Hopper."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import check_choice, common_position
from tk_kernels.forward.operator import (
    HEAD_DIM,
    Outer,
    Tokens,
    check_addresses,
    check_arguments,
    check_inplace,
    forward_from,
    to_float32,
)
from tk_kernels.reference.token_rows import overwrite
from tk_kernels.ttt_linear import reference
from tk_kernels.ttt_linear.reference import LinearState

KERNELS = dict.fromkeys((16, 32), "ttt_linear/forward_sm90")  # by mini-batch; checkpoints have 16
MINI_BATCHES = tuple(KERNELS)
WEIGHTS: dict[str, tuple[int, ...]] = {"W": (HEAD_DIM, HEAD_DIM), "b": (HEAD_DIM,)}
ROWS = {"k_rows": HEAD_DIM, "g_rows": HEAD_DIM}  # their widths


def available(mini_batch: int = 16) -> str:
    """Why the kernel for this mini-batch cannot run here, in one sentence; empty when it can."""
    check_choice("mini_batch", mini_batch, MINI_BATCHES)
    return build.unavailable(KERNELS[mini_batch])


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: LinearState,
    *,
    rope: bool = False,
    start: int | None = None,
    inplace: bool = False,
) -> tuple[Tensor, LinearState]:
    """Outputs [B, T, H, 64] of T tokens and the state after them; the given one is kept, or with `inplace` becomes it.

    q, k, v [B, T, H, 64] bfloat16, the last dimension contiguous; lr [B, T, H] = base_lr * sigmoid(...) / D;
    token_scale [m], none below 0, whose length is the mini-batch (MINI_BATCHES); ln_weight, ln_bias [H, 64]; the state
    float32. rope=True applies RoPE (theta 10000, position in the mini-batch, interleaved pairs) to q and k, which
    otherwise have it already. T is any number; state.position must be the same for the batch, and a caller that knows
    it passes it as `start`, so that it need not be read from the device. Tokens up to the end of a mini-batch that the
    state has begun go through the reference. Raises ValueError for what is not supported.
    """
    tokens, outer = (q, k, v, lr), (token_scale, ln_weight, ln_bias)
    check_arguments(tokens, outer, state, WEIGHTS, MINI_BATCHES)
    start = common_position(state.position, start, len(token_scale))
    if inplace:
        check_inplace(state, len(token_scale), ROWS)
    aligned = partial(_aligned, inplace)
    out, after = forward_from(start, tokens, outer, state, rope, reference.forward, aligned)
    if not inplace:
        return out, after
    overwrite(state, after)
    return out, state


def _aligned(inplace: bool, tokens: Tokens, outer: Outer, state: LinearState, rope: bool) -> tuple[Tensor, LinearState]:
    """Tokens whose first begins a mini-batch."""
    q, k, v, lr = tokens
    W, b = to_float32(state.W, state.b)
    after = state if inplace else _empty_state(W, b, state.position, len(outer[0]))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _forward(q, k, v, *to_float32(lr, *outer), W, b, out, *after[:-1], rope)
    after.position.fill_(q.shape[1] % len(outer[0]))
    return out, after


@torch.library.custom_op("ttt_bench::linear_forward", mutates_args=("out", "W_out", "b_out", "k_rows", "g_rows"))
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    W: Tensor,
    b: Tensor,
    out: Tensor,
    W_out: Tensor,
    b_out: Tensor,
    k_rows: Tensor,
    g_rows: Tensor,
    rope: bool,
) -> None:
    """The kernel; W_out and b_out may be W and b: threads have read what of W they write, b lies behind a barrier."""
    check_addresses(q=q, k=k, v=v, W=W, b=b, W_out=W_out, b_out=b_out, k_rows=k_rows, g_rows=g_rows)
    module = build.load(KERNELS[len(token_scale)])
    plan = schedule(q.shape[0] * q.shape[2], len(token_scale), _processors(q))
    inputs, outputs = (q, k, v, lr, token_scale, ln_weight, ln_bias, W, b), (out, W_out, b_out, k_rows, g_rows)
    with torch.cuda.device(q.device):
        module.forward(*inputs, *outputs, rope, *plan)


def schedule(sequences: int, mini_batch: int, processors: int) -> tuple[int, int]:
    """Warps per head and heads per block: few heads are split over more warps, many share an SM."""
    return (4, 1) if sequences <= 2 * processors or mini_batch > 16 else (2, 4)


def _empty_state(W: Tensor, b: Tensor, position: Tensor, mini_batch: int) -> LinearState:
    rows = (*W.shape[:2], mini_batch, HEAD_DIM)
    weights = torch.empty_like(W), torch.empty_like(b)
    return LinearState(*weights, W.new_empty(rows), W.new_empty(rows), torch.empty_like(position))


def _processors(q: Tensor) -> int:
    return torch.cuda.get_device_properties(q.device).multi_processor_count
