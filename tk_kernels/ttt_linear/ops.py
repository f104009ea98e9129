"""The TTT-Linear forward kernel as a PyTorch operator: the function of `reference.forward` (form "dual") on Hopper."""

from __future__ import annotations

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
    forward_from,
    to_float32,
)
from tk_kernels.ttt_linear import reference
from tk_kernels.ttt_linear.reference import LinearState

KERNELS = dict.fromkeys((16, 32), "ttt_linear/forward_sm90")  # by mini-batch; checkpoints have 16
MINI_BATCHES = tuple(KERNELS)
WEIGHTS: dict[str, tuple[int, ...]] = {"W": (HEAD_DIM, HEAD_DIM), "b": (HEAD_DIM,)}
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


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
) -> tuple[Tensor, LinearState]:
    """Outputs [B, T, H, 64] of T tokens and the state after them; the given state is left as it is.

    q, k, v [B, T, H, 64] bfloat16, the last dimension contiguous; lr [B, T, H] = base_lr * sigmoid(...) / D;
    token_scale [m], whose length is the mini-batch (MINI_BATCHES); ln_weight, ln_bias [H, 64]; the state float32.
    rope=True applies RoPE (theta 10000, position in the mini-batch, interleaved pairs) to q and k, which otherwise have
    it already. T is any number; state.position must be the same for the batch, and a caller that knows it passes it as
    `start`, so that it need not be read from the device. Tokens up to the end of a mini-batch that the state has begun
    go through the reference. Raises ValueError for what is not supported.
    """
    tokens, outer = (q, k, v, lr), (token_scale, ln_weight, ln_bias)
    check_arguments(tokens, outer, state, WEIGHTS, MINI_BATCHES)
    start = common_position(state.position, start, len(token_scale))
    return forward_from(start, tokens, outer, state, rope, reference.forward, _aligned)


def _aligned(tokens: Tokens, outer: Outer, state: LinearState, rope: bool) -> tuple[Tensor, LinearState]:
    """Tokens whose first begins a mini-batch."""
    q, k, v, lr = tokens
    out, W, b, k_rows, g_rows = _forward(q, k, v, *to_float32(lr, *outer, state.W, state.b), rope)
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
    module = build.load(KERNELS[len(token_scale)])
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
    """Warps per head and heads per block: few heads are split over more warps, many share an SM."""
    return (4, 1) if sequences <= 2 * processors or mini_batch > 16 else (2, 4)


def _empty_results(q: Tensor, token_scale: Tensor, W: Tensor, b: Tensor) -> Results:
    rows = (*W.shape[:2], len(token_scale), HEAD_DIM)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, torch.empty_like(W), torch.empty_like(b), W.new_empty(rows), W.new_empty(rows)


def _processors(q: Tensor) -> int:
    return torch.cuda.get_device_properties(q.device).multi_processor_count
