"""Linear and softmax attention as TTT layers (arXiv 2407.04620, Theorems 1 and 2)."""

import math

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


def nadaraya_watson(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return a Nadaraya-Watson learner's outputs [B, T, H, D]: softmax attention (Theorem 2).

    f(q_t) = sum_j kernel(q_t, k_j) v_j / sum_j kernel(q_t, k_j) over j <= t, with kernel(q, k) = exp(q . k / sqrt(D)).
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    log_weight = q @ k.mT / math.sqrt(q.shape[-1])
    future = torch.ones(log_weight.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    log_weight = log_weight.masked_fill(future, -math.inf)
    # scale each query's largest weight to 1: the division below cancels the factor
    weight = (log_weight - log_weight.amax(-1, keepdim=True)).exp()
    return (weight @ v / weight.sum(-1, keepdim=True)).transpose(1, 2)
