"""Which close relatives of the TTT layer does the reference cover, and how is each obtained from it?

Three are variants of the operator, two wrap it, and one is another learner in its place.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tk_kernels.checks import STATE_DTYPE, check_choice
from tk_kernels.reference.layer import THE_LAYER, Variant
from tk_kernels.reference.layer import token_scale as token_scale_of
from tk_kernels.ttt_linear import reference as ttt_linear
from tk_kernels.ttt_mlp import reference as ttt_mlp

# "Implementating Test-Time Training - Part 1" (two layers): f(k) = k + relu(k @ W1 + b1) @ W2 + b2 learns v.
NO_NORM_RELU = Variant(layer_norm=False, activation="relu")
# titans-pytorch: each query is read with the weights of its mini-batch's start.
INITIAL_QUERY = Variant(query="initial")
# Theorem 1: with W0 = 0, all tokens in one mini-batch, token_scale 1 and lr 1 (eta 1/2 of a loss without the 1/2),
# TTT-Linear is linear attention, out_t = sum over j <= t of (q_t . k_j) v_j.
LINEAR_ATTENTION = Variant(layer_norm=False, residual=False, bias=False)

Layer = Callable[[Tensor], Tensor]
State = ttt_linear.LinearState | ttt_mlp.MLPState


def attention_state(
    q: Tensor, *, learner: str = "linear", mini_batch: int = 16, seed: int = 0, std: float = 0.02
) -> State:
    """A first state for `attention` on q [B, T, H, D]: weights drawn from N(0, std^2) by a seed, biases 0."""
    check_choice("learner", learner, ("linear", "mlp"))
    batch, _, heads, dim = q.shape
    dtype, generator = STATE_DTYPE[q.dtype], torch.Generator().manual_seed(seed)

    def layer(inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
        weight = std * torch.randn(heads, inputs, outputs, generator=generator)
        return weight.to(q.device), torch.zeros(heads, 1, outputs, device=q.device)

    if learner == "linear":
        return ttt_linear.init_state(*layer(dim, dim), batch, mini_batch, dtype)
    return ttt_mlp.init_state(*layer(dim, 4 * dim), *layer(4 * dim, dim), batch, mini_batch, dtype)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State | None = None,
    *,
    lr: float | None = None,
    variant: Variant = THE_LAYER,
) -> tuple[Tensor, State]:
    """A causal attention with no learned outer parameters: q, k, v [B, T, H, D] -> out [B, T, H, D] and the state.

    LN weight 1 and bias 0, token scale 1/(i+1), one fixed learning rate (the untrained layer's, 1 / 2D for TTT-Linear
    and 0.1 / 2D for TTT-MLP, unless given), first state of attention_state unless one is given.
    """
    state = attention_state(q) if state is None else state
    dtype, head_dim = STATE_DTYPE[q.dtype], q.shape[-1]
    if lr is None:
        lr = (1.0 if isinstance(state, ttt_linear.LinearState) else 0.1) / (2 * head_dim)
    rates = torch.full(q.shape[:-1], lr, dtype=dtype, device=q.device)
    scale = token_scale_of(torch.zeros(state.k_rows.shape[2], dtype=dtype, device=q.device))
    weight = torch.ones(q.shape[2:], dtype=dtype, device=q.device)
    outer = (rates, scale, weight, torch.zeros_like(weight))
    if isinstance(state, ttt_linear.LinearState):
        return ttt_linear.forward(q, k, v, *outer, state, variant=variant)
    return ttt_mlp.forward(q, k, v, *outer, state, variant=variant)


def gated(layer: Layer, alpha: Tensor) -> Layer:
    """x -> tanh(alpha) * layer(x) + x, x [B, T, C], alpha [C] (the video model, arXiv 2504.05298, Section 3.2)."""
    return lambda x: torch.tanh(alpha) * layer(x) + x


def reversed_time(layer: Layer) -> Layer:
    """x -> flip(layer(flip(x))) along T: the second pass of non-causal use; RoPE and state are inside the layer."""
    return lambda x: layer(x.flip(1)).flip(1)


class KernelEstimatorState(NamedTuple):
    """Training set of a Nadaraya-Watson learner: k, v [B, T, H, D]."""

    k: Tensor
    v: Tensor


def exponential_kernel(q: Tensor, k: Tensor) -> Tensor:
    """log kernel(q, k) = q . k / sqrt(D): q [B, H, n, D], k [B, H, T, D] -> [B, H, n, T]."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def nadaraya_watson(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: KernelEstimatorState | None = None,
    log_kernel: Callable[[Tensor, Tensor], Tensor] = exponential_kernel,
) -> tuple[Tensor, KernelEstimatorState]:
    """A nonparametric learner in place of f: token t adds (k_t, v_t) to its training set, then predicts for q_t.

    f(q) = sum_j kernel(q, k_j) v_j / sum_j kernel(q, k_j). q, k, v [B, T, H, D], any T -> out [B, T, H, D] and the new
    training set. With the exponential kernel this is softmax attention (Theorem 2, arXiv 2407.04620, Section 2.6).
    """
    seen = 0 if state is None else state.k.shape[1]
    if state is not None:
        k, v = torch.cat((state.k, k), 1), torch.cat((state.v, v), 1)
    log_weight = log_kernel(q.transpose(1, 2), k.transpose(1, 2))
    future = torch.ones(log_weight.shape[-2:], dtype=torch.bool, device=q.device).triu(seen + 1)
    log_weight = log_weight.masked_fill(future, -math.inf)
    # the estimate does not depend on a common factor of a query's weights: scale the largest to 1
    weight = (log_weight - log_weight.amax(-1, keepdim=True)).exp()
    out = weight @ v.transpose(1, 2) / weight.sum(-1, keepdim=True)
    return out.transpose(1, 2), KernelEstimatorState(k, v)
