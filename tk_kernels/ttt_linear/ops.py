"""How does PyTorch call the TTT-Linear forward kernel? A schedule and a custom operator.

`forward` computes what `reference.forward` of the same arguments does (form "dual"), on a Hopper GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import common_position
from tk_kernels.forward.operator import HEAD_DIM, Outer, Tokens, check_addresses, check_arguments, forward_from, wide
from tk_kernels.ttt_linear import reference
from tk_kernels.ttt_linear.reference import LinearState

KERNEL = "ttt_linear/forward_sm90"
MINI_BATCHES = (16, 32)
WEIGHTS: dict[str, tuple[int, ...]] = {"W": (HEAD_DIM, HEAD_DIM), "b": (HEAD_DIM,)}
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def available() -> str:
    """Why the kernel cannot run here, in one sentence; empty when it can."""
    return build.unavailable(KERNEL)


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
) -> tuple[Tensor, LinearState]:
    """Outputs [B, T, H, 64] of T tokens and the state after them; the given state is left as it is.

    q, k, v [B, T, H, 64] bfloat16, the last dimension contiguous; lr [B, T, H] = base_lr * sigmoid(...) / D;
    token_scale [16] or [32]; ln_weight, ln_bias [H, 64]; the state float32. rope=True applies RoPE (theta 10000,
    position in the mini-batch, interleaved pairs) to q and k, which otherwise arrive with it. T is any; state.position,
    inside the mini-batch, is common to the batch, and a caller that knows it passes it as start and saves reading it
    from the device. Tokens up to the end of a mini-batch that the state has begun go through the reference. Raises
    ValueError for what is not supported.
    """
    tokens, outer = (q, k, v, lr), (token_scale, ln_weight, ln_bias)
    check_arguments(tokens, outer, state, WEIGHTS, MINI_BATCHES)
    start = common_position(state.position, start, len(token_scale))
    return forward_from(start, tokens, outer, state, rope, reference.forward, _aligned)


def _aligned(tokens: Tokens, outer: Outer, state: LinearState, rope: bool) -> tuple[Tensor, LinearState]:
    """Tokens that begin a mini-batch."""
    q, k, v, lr = tokens
    out, W, b, k_rows, g_rows = _forward(q, k, v, *wide(lr, *outer, state.W, state.b), rope)
    return out, LinearState(W, b, k_rows, g_rows, torch.full_like(state.position, q.shape[1] % len(outer[0])))


@torch.library.custom_op("ttt_bench::linear_forward", mutates_args=())
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
    rope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The kernel: out, W, b, k_rows, g_rows, all new tensors."""
    check_addresses(q=q, k=k, v=v)
    module = build.load(KERNEL)
    results = _empty_results(q, token_scale, W, b)
    plan = schedule(q.shape[0] * q.shape[2], len(token_scale), _processors(q))
    with torch.cuda.device(q.device):
        module.forward(q, k, v, lr, token_scale, ln_weight, ln_bias, W, b, *results, rope, *plan)
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
    W: Tensor,
    b: Tensor,
    rope: bool,
) -> Results:
    return _empty_results(q, token_scale, W, b)


def schedule(sequences: int, mini_batch: int, processors: int) -> tuple[int, int]:
    """Warps a head and heads a block: few heads are split over more warps, many share a processor."""
    return (4, 1) if sequences <= 2 * processors or mini_batch > 16 else (2, 4)


def _empty_results(q: Tensor, token_scale: Tensor, W: Tensor, b: Tensor) -> Results:
    rows = (*W.shape[:2], len(token_scale), HEAD_DIM)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, torch.empty_like(W), torch.empty_like(b), W.new_empty(rows), W.new_empty(rows)


def _processors(q: Tensor) -> int:
    return torch.cuda.get_device_properties(q.device).multi_processor_count
