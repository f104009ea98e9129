"""The TTT-MLP forward kernels as a PyTorch operator: the function of `reference.forward` (form "dual") on Hopper."""

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
    forward_from,
    to_float32,
)
from tk_kernels.ttt_mlp import reference
from tk_kernels.ttt_mlp.reference import MLPState

IN_USE = "in-use"
KERNELS = {16: "ttt_mlp/forward_sm90", 32: "ttt_mlp/forward_32_sm90"}  # by mini-batch; checkpoints have 16
# Complete, for mini-batches of 16, and not in use: to be asked for by name and measured beside the one that is
CANDIDATES = {"sixth": "ttt_mlp/forward_sixth_sm90"}
MINI_BATCHES = tuple(KERNELS)
HIDDEN = 256
WEIGHTS: dict[str, tuple[int, ...]] = {
    "W1": (HEAD_DIM, HIDDEN),
    "b1": (HIDDEN,),
    "W2": (HIDDEN, HEAD_DIM),
    "b2": (HEAD_DIM,),
}
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def module_of(mini_batch: int = 16, kernel: str = IN_USE) -> str:
    """The name under which `tk_kernels.build` knows a kernel. ValueError where there is none."""
    check_choice("mini_batch", mini_batch, MINI_BATCHES)
    candidates = CANDIDATES if mini_batch == 16 else {}
    check_choice(f"kernel, for mini-batches of {mini_batch},", kernel, (IN_USE, *candidates))
    return KERNELS[mini_batch] if kernel == IN_USE else CANDIDATES[kernel]


def available(mini_batch: int = 16, kernel: str = IN_USE) -> str:
    """Why the kernel for this mini-batch cannot run here, in one sentence; empty when it can."""
    return build.unavailable(module_of(mini_batch, kernel))


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
    kernel: str = IN_USE,
) -> tuple[Tensor, MLPState]:
    """Outputs [B, T, H, 64] of T tokens and the state after them; the given state is left as it is.

    q, k, v [B, T, H, 64] bfloat16, the last dimension contiguous; lr [B, T, H] = base_lr * sigmoid(...) / D;
    token_scale [m], whose length is the mini-batch (MINI_BATCHES); ln_weight, ln_bias [H, 64]; the state float32 with
    F = 256. rope=True applies RoPE (theta 10000, position in the mini-batch, interleaved pairs) to q and k, which
    otherwise have it already. T is any number; state.position must be the same for the batch, and a caller that knows
    it passes it as `start`, so that it need not be read from the device. Tokens up to the end of a mini-batch that the
    state has begun go through the reference. kernel: the one in use, or a name of CANDIDATES. Raises ValueError for
    what is not supported.
    """
    tokens, outer = (q, k, v, lr), (token_scale, ln_weight, ln_bias)
    check_arguments(tokens, outer, state, WEIGHTS, MINI_BATCHES)
    module = module_of(len(token_scale), kernel)
    start = common_position(state.position, start, len(token_scale))
    return forward_from(start, tokens, outer, state, rope, reference.forward, partial(_aligned, module))


def _aligned(module: str, tokens: Tokens, outer: Outer, state: MLPState, rope: bool) -> tuple[Tensor, MLPState]:
    """Tokens whose first begins a mini-batch, by the kernel of that module."""
    q, k, v, lr = tokens
    floats = to_float32(lr, *outer, state.W1, state.b1, state.W2, state.b2)
    out, W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows = _forward(q, k, v, *floats, rope, module)
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
    module: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The kernel: out, W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows, all new tensors."""
    check_addresses(q=q, k=k, v=v)
    launcher = build.load(module)
    results = _empty_results(q, token_scale, W1, b1, W2, b2)
    with torch.cuda.device(q.device):
        launcher.forward(q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2, *results, rope)
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
    module: str,
) -> Results:
    return _empty_results(q, token_scale, W1, b1, W2, b2)


def _empty_results(q: Tensor, token_scale: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor) -> Results:
    def rows(width: int) -> Tensor:
        return W1.new_empty(*W1.shape[:2], len(token_scale), width)

    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    weights = (torch.empty_like(W1), torch.empty_like(b1), torch.empty_like(W2), torch.empty_like(b2))
    return out, *weights, rows(HEAD_DIM), rows(HIDDEN), rows(HIDDEN), rows(HEAD_DIM)
