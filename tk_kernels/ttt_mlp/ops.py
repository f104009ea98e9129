"""How does PyTorch call the TTT-MLP forward kernel? A custom operator.

`forward` computes what `reference.forward` of the same arguments does (form "dual"), on a Hopper GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import common_position
from tk_kernels.forward.operator import HEAD_DIM, Outer, Tokens, check_addresses, check_arguments, forward_from, wide
from tk_kernels.ttt_mlp import reference
from tk_kernels.ttt_mlp.reference import MLPState

KERNEL = "ttt_mlp/forward_sm90"
KERNELS = {16: KERNEL, 32: "ttt_mlp/forward_32_sm90"}  # of each mini-batch
HIDDEN = 256
WEIGHTS: dict[str, tuple[int, ...]] = {
    "W1": (HEAD_DIM, HIDDEN),
    "b1": (HIDDEN,),
    "W2": (HIDDEN, HEAD_DIM),
    "b2": (HEAD_DIM,),
}
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def available(mini_batch: int = 16) -> str:
    """Why the kernel of this mini-batch cannot run here, in one sentence; empty when it can."""
    return build.unavailable(KERNELS[mini_batch])


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
    start: int | None = None,
    rope: bool = False,
) -> tuple[Tensor, MLPState]:
    """Outputs [B, T, H, 64] of T tokens and the state after them; the given state is left as it is.

    q, k, v [B, T, H, 64] bfloat16, the last dimension contiguous; lr [B, T, H] = base_lr * sigmoid / 64;
    token_scale [16] or [32]; ln_weight, ln_bias [H, 64]; the state float32, F = 256. T is any; state.position, inside
    the mini-batch, is common to the batch, and a caller that knows it passes it as start and saves reading it from the
    device. With rope, q and k are rotated here, by that position. Tokens up to the end of a mini-batch that the state
    has begun go through the reference. Raises ValueError for what is not supported.
    """
    tokens, outer = (q, k, v, lr), (token_scale, ln_weight, ln_bias)
    check_arguments(tokens, outer, state, WEIGHTS, tuple(KERNELS))
    start = common_position(state.position, start, len(token_scale))
    return forward_from(start, tokens, outer, state, rope, reference.forward, _aligned)


def _aligned(tokens: Tokens, outer: Outer, state: MLPState, rope: bool) -> tuple[Tensor, MLPState]:
    """Tokens that begin a mini-batch."""
    q, k, v, lr = tokens
    floats = wide(lr, *outer, state.W1, state.b1, state.W2, state.b2)
    out, W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows = _forward(q, k, v, *floats, rope)
    position = torch.full_like(state.position, q.shape[1] % len(outer[0]))
    return out, MLPState(W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows, position)


@torch.library.custom_op("ttt_bench::mlp_forward", mutates_args=())
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
    rope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The kernel: out, W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows, all new tensors."""
    check_addresses(q=q, k=k, v=v)
    module = build.load(KERNELS[len(token_scale)])
    results = _empty_results(q, token_scale, W1, b1, W2, b2)
    with torch.cuda.device(q.device):
        module.forward(q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2, *results, rope)
    return results


@_forward.register_fake
def _(
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
    rope: bool,
) -> Results:
    return _empty_results(q, token_scale, W1, b1, W2, b2)


def _empty_results(q: Tensor, token_scale: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor) -> Results:
    def rows(width: int) -> Tensor:
        return W1.new_empty(*W1.shape[:2], len(token_scale), width)

    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    weights = (torch.empty_like(W1), torch.empty_like(b1), torch.empty_like(W2), torch.empty_like(b2))
    return out, *weights, rows(HEAD_DIM), rows(HIDDEN), rows(HIDDEN), rows(HEAD_DIM)
