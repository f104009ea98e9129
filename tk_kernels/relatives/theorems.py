"""Linear and softmax attention as TTT layers (arXiv 2407.04620, Theorems 1 and 2)."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tk_kernels.reference.naive import Weights, fresh_state, train


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return linear attention, [T, D] for one head's q, k, v [T, D] (Theorem 1).

    out_t = sum over j <= t of (q_t . k_j) v_j. As a TTT layer: f(x) = x @ W without LayerNorm, W_0 = 0, eta = 1/2.
    The loss is |f(k) - v|^2, and all tokens are one mini-batch.
    """

    def f(x: Tensor, weights: Weights) -> Tensor:
        return x @ weights[0]

    def loss(weights: Weights, k: Tensor, v: Tensor) -> Tensor:
        return (f(k, weights) - v).square().sum()

    tokens, head_dim = q.shape
    state = fresh_state(q.new_zeros(head_dim, head_dim))
    return train(f, loss, q, k, v, q.new_full((tokens,), 0.5), q.new_ones(tokens), state)[0]


class TrainingSet(NamedTuple):
    """The state of a nonparametric learner: k and v [B, T, H, D] of all tokens so far."""

    k: Tensor
    v: Tensor


def exponential_kernel(q: Tensor, k: Tensor) -> Tensor:
    """Return log kernel(q, k) = q . k / sqrt(D): q [B, H, n, D], k [B, H, T, D] -> [B, H, n, T]."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def nadaraya_watson(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: TrainingSet | None = None,
    log_kernel: Callable[[Tensor, Tensor], Tensor] = exponential_kernel,
) -> tuple[Tensor, TrainingSet]:
    """Return a Nadaraya-Watson learner's outputs [B, T, H, D] and training set (Theorem 2).

    f(q_t) = sum_j kernel(q_t, k_j) v_j / sum_j kernel(q_t, k_j) over j <= t. The exponential kernel is softmax
    attention.
    seen: the training set of earlier tokens. log_kernel: takes q and k as `exponential_kernel` does.
    """
    before = 0 if seen is None else seen.k.shape[1]
    if seen is not None:
        k, v = torch.cat((seen.k, k), 1), torch.cat((seen.v, v), 1)
    log_weight = log_kernel(q.transpose(1, 2), k.transpose(1, 2))
    future = torch.ones(log_weight.shape[-2:], dtype=torch.bool, device=q.device).triu(before + 1)
    log_weight = log_weight.masked_fill(future, -math.inf)
    # a common factor of a query's weights cancels: scale the largest to 1
    weight = (log_weight - log_weight.amax(-1, keepdim=True)).exp()
    out = weight @ v.transpose(1, 2) / weight.sum(-1, keepdim=True)
    return out.transpose(1, 2), TrainingSet(k, v)
