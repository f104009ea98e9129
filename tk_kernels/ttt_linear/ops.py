"""The TTT-Linear forward as a PyTorch operator: Hopper kernel, Triton kernel or reference, by the GPU."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import check_choice, common_position
from tk_kernels.forward.common import processors
from tk_kernels.forward.operator import (
    BACKENDS,
    HEAD_DIM,
    THUNDERKITTENS,
    TRITON,
    Outer,
    Tokens,
    check_addresses,
    check_arguments,
    check_inplace,
    chosen,
    forward_from,
    reference_into,
    to_float32,
)
from tk_kernels.reference.token_rows import overwrite
from tk_kernels.ttt_linear import forward as portable
from tk_kernels.ttt_linear import reference
from tk_kernels.ttt_linear.reference import LinearState

KERNELS = dict.fromkeys((16, 32), "ttt_linear/forward_sm90")  # for Hopper, by mini-batch
WEIGHTS: dict[str, tuple[int, ...]] = {"W": (HEAD_DIM, HEAD_DIM), "b": (HEAD_DIM,)}
ROWS = {"k_rows": HEAD_DIM, "g_rows": HEAD_DIM}  # width of each


def available(mini_batch: int = 16) -> str:
    """Return why the Hopper kernel for this mini-batch cannot run here, in one sentence; an empty string if it can."""
    check_choice("mini_batch", mini_batch, tuple(KERNELS))
    return build.unavailable(KERNELS[mini_batch])


def choice(q: Tensor, mini_batch: int) -> str:
    """Return the backend that `forward` chooses for tokens like q [B, T, H, D]: one of BACKENDS."""
    return chosen(q, mini_batch, KERNELS)


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
    backend: str = "",
) -> tuple[Tensor, LinearState]:
    """Return the outputs [B, T, H, D] of T tokens and the state after them; `inplace` updates the given state.

    q, k, v [B, T, H, D] of one of DTYPES, the last dimension contiguous, D one of HEAD_DIMS.
    lr [B, T, H] = base_lr * sigmoid(...) / D.
    token_scale [m], none below 0; its length is the mini-batch, 4 to 64. ln_weight, ln_bias [H, D].
    state: float32, all sequences at the same position. Inside a mini-batch, tokens up to its end run in the reference.
    rope: apply RoPE (theta 10000, position in the mini-batch, interleaved pairs); otherwise q and k already have it.
    start: the state's position, 0 to m - 1. Without it, the position is read from the device, which waits for the GPU.
    backend: one of BACKENDS; "" selects by `choice`.
    Raises ValueError for unsupported arguments.
    """
    tokens, outer = (q, k, v, lr), (token_scale, ln_weight, ln_bias)
    check_arguments(tokens, outer, state, WEIGHTS)
    check_choice("backend", backend, ("", *BACKENDS))
    start = common_position(state.position, start, len(token_scale))
    if inplace:
        check_inplace(state, len(token_scale), ROWS)
    aligned = partial(_aligned, inplace, backend)
    out, after = forward_from(start, tokens, outer, state, rope, reference.forward, aligned)
    if not inplace:
        return out, after
    overwrite(state, after)
    return out, state


def _aligned(
    inplace: bool, backend: str, tokens: Tokens, outer: Outer, state: LinearState, rope: bool
) -> tuple[Tensor, LinearState]:
    """Run tokens that start at a mini-batch's first position."""
    q, k, v, lr = tokens
    W, b = to_float32(state.W, state.b)
    after = state if inplace else _empty_state(W, b, state.position, len(outer[0]))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _forward(q, k, v, *to_float32(lr, *outer), W, b, out, *after[:-1], rope, backend)
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
    backend: str,
) -> None:
    """Run `backend` and write the tensors `out` to `g_rows`. W_out may be W, b_out may be b: an update in place."""
    tokens, outer, weights = (q, k, v, lr), (token_scale, ln_weight, ln_bias), (W, b)
    outputs = (out, W_out, b_out, k_rows, g_rows)
    backend = backend or choice(q, len(token_scale))
    if backend == THUNDERKITTENS:
        check_addresses(q=q, k=k, v=v, W=W, b=b, W_out=W_out, b_out=b_out, k_rows=k_rows, g_rows=g_rows)
        module = build.load(KERNELS[len(token_scale)])
        plan = schedule(q.shape[0] * q.shape[2], len(token_scale), processors(q))
        with torch.cuda.device(q.device):
            module.forward(*tokens, *outer, *weights, *outputs, rope, *plan)
    elif backend == TRITON:
        portable.launch(tokens, outer, weights, outputs, rope)
    else:
        reference_into(reference, LinearState, tokens, outer, weights, outputs, rope)


def schedule(sequences: int, mini_batch: int, processors: int) -> tuple[int, int]:
    """Return (warps per head, heads per block): few heads are split over more warps, many heads share an SM."""
    return (4, 1) if sequences <= 2 * processors or mini_batch > 16 else (2, 4)


def _empty_state(W: Tensor, b: Tensor, position: Tensor, mini_batch: int) -> LinearState:
    rows = (*W.shape[:2], mini_batch, W.shape[-1])
    weights = torch.empty_like(W), torch.empty_like(b)
    return LinearState(*weights, W.new_empty(rows), W.new_empty(rows), torch.empty_like(position))
