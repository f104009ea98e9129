"""The loop of every parametric TTT layer: train the learner f on (k, v), then read f(q); one head, token by token."""

from collections.abc import Callable

import torch
from torch import Tensor

Weights = tuple[Tensor, ...]
Learner = Callable[[Tensor, Weights], Tensor]  # x, weights -> f(x)
Loss = Callable[[Weights, Tensor, Tensor], Tensor]  # weights, k, v -> a scalar


def run(
    f: Learner,
    loss: Loss,
    weights: Weights,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    *,
    read_updated: bool = True,
) -> Tensor:
    """Return f(q_t) for every token t: q, k, v [T, D], lr [T], token_scale [m] -> [T, D].

    f(q_t) is at weights - token_scale[i] * (sum of lr_j * gradient of loss(k_j, v_j)). i is the position of t in its
    mini-batch, and the sum is over the tokens j <= t of that mini-batch. All gradients are at the weights of the
    mini-batch's start. With read_updated=False, f(q_t) is at those weights too.
    """
    outputs = []
    for t in range(len(q)):
        i = t % len(token_scale)
        if i == 0:
            start, sums = weights, [torch.zeros_like(w) for w in weights]
        gradients = torch.func.grad(loss)(start, k[t], v[t])
        sums = [total + lr[t] * gradient for total, gradient in zip(sums, gradients, strict=True)]
        weights = tuple(w - token_scale[i] * total for w, total in zip(start, sums, strict=True))
        outputs.append(f(q[t], weights if read_updated else start))
    return torch.stack(outputs)
