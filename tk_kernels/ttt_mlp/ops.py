"""The TTT-MLP forward as a PyTorch operator: Hopper kernel, Triton kernel or reference, by the GPU."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import check_choice, common_position
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
from tk_kernels.ttt_mlp import forward as portable
from tk_kernels.ttt_mlp import reference
from tk_kernels.ttt_mlp.reference import MLPState

KERNELS = {16: "ttt_mlp/forward_sm90", 32: "ttt_mlp/forward_32_sm90"}  # for Hopper, by mini-batch
HIDDEN = 256
WEIGHTS: dict[str, tuple[int, ...]] = {
    "W1": (HEAD_DIM, HIDDEN),
    "b1": (HIDDEN,),
    "W2": (HIDDEN, HEAD_DIM),
    "b2": (HEAD_DIM,),
}
ROWS = {"k_rows": HEAD_DIM, "x2_rows": HIDDEN, "g1_rows": HIDDEN, "g2_rows": HEAD_DIM}  # width of each


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
    state: MLPState,
    *,
    rope: bool = False,
    start: int | None = None,
    inplace: bool = False,
    backend: str = "",
) -> tuple[Tensor, MLPState]:
    """Return the outputs [B, T, H, D] of T tokens and the state after them; `inplace` updates the given state.

    q, k, v [B, T, H, D] of one of DTYPES, the last dimension contiguous, D one of HEAD_DIMS.
    lr [B, T, H] = base_lr * sigmoid(...) / D.
    token_scale [m], none below 0; its length is the mini-batch, 4 to 64. ln_weight, ln_bias [H, D].
    state: float32, F = 4 D, all sequences at the same position. Inside a mini-batch, tokens up to its end run in the
    reference.
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
    inplace: bool, backend: str, tokens: Tokens, outer: Outer, state: MLPState, rope: bool
) -> tuple[Tensor, MLPState]:
    """Run tokens that start at a mini-batch's first position."""
    q, k, v, lr = tokens
    weights = to_float32(state.W1, state.b1, state.W2, state.b2)
    after = state if inplace else _empty_state(weights, state.position, len(outer[0]))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _forward(q, k, v, *to_float32(lr, *outer), *weights, out, *after[:-1], rope, backend)
    after.position.fill_(q.shape[1] % len(outer[0]))
    return out, after


_OUTPUTS = ("out", "W1_out", "b1_out", "W2_out", "b2_out", "k_rows", "x2_rows", "g1_rows", "g2_rows")


@torch.library.custom_op("ttt_bench::mlp_forward", mutates_args=_OUTPUTS)
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    W1: Tensor,
    b1: Tensor,
    W2: Tensor,
    b2: Tensor,
    out: Tensor,
    W1_out: Tensor,
    b1_out: Tensor,
    W2_out: Tensor,
    b2_out: Tensor,
    k_rows: Tensor,
    x2_rows: Tensor,
    g1_rows: Tensor,
    g2_rows: Tensor,
    rope: bool,
    backend: str,
) -> None:
    """Run `backend` and write all tensors of _OUTPUTS. W1_out may be W1, and so on: an update in place."""
    tokens, outer, weights = (q, k, v, lr), (token_scale, ln_weight, ln_bias), (W1, b1, W2, b2)
    outputs = (out, W1_out, b1_out, W2_out, b2_out, k_rows, x2_rows, g1_rows, g2_rows)
    backend = backend or choice(q, len(token_scale))
    if backend == THUNDERKITTENS:
        check_addresses(q=q, k=k, v=v, W1=W1, b1=b1, W2=W2, b2=b2, W1_out=W1_out, b1_out=b1_out, W2_out=W2_out)
        check_addresses(b2_out=b2_out, k_rows=k_rows, x2_rows=x2_rows, g1_rows=g1_rows, g2_rows=g2_rows)
        launcher = build.load(KERNELS[len(token_scale)])
        with torch.cuda.device(q.device):
            launcher.forward(*tokens, *outer, *weights, *outputs, rope)
    elif backend == TRITON:
        portable.launch(tokens, outer, weights, outputs, rope)
    else:
        reference_into(reference, MLPState, tokens, outer, weights, outputs, rope)


def _empty_state(weights: tuple[Tensor, ...], position: Tensor, mini_batch: int) -> MLPState:
    W1, b1, W2, b2 = (torch.empty_like(x) for x in weights)
    narrow, wide = ((*W1.shape[:2], mini_batch, width) for width in W1.shape[2:])
    k_rows, x2_rows, g1_rows, g2_rows = (W1.new_empty(shape) for shape in (narrow, wide, wide, narrow))
    return MLPState(W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows, torch.empty_like(position))
