"""The two-layer ReLU operator of the article "Implementating Test-Time Training - Part 1".

f(x) = x + relu(x @ W1 + b1) @ W2 + b2 learns v from k, and the output is f(q). The published operator has no
biases; this code trains b1 and b2, so the outputs differ.
"""

from torch import Tensor

from tk_kernels.reference.naive import Weights, fresh_state, train


def f(x: Tensor, weights: Weights) -> Tensor:
    W1, b1, W2, b2 = weights
    return x + (x @ W1 + b1).relu() @ W2 + b2


def loss(weights: Weights, k: Tensor, v: Tensor) -> Tensor:
    return (f(k, weights) - v).square().sum() / 2


def forward(weights: Weights, q: Tensor, k: Tensor, v: Tensor, lr: Tensor, token_scale: Tensor) -> Tensor:
    """Return the outputs [T, D] of one head of a new sequence.

    weights: W1 [D, F], b1 [F], W2 [F, D], b2 [D]. q, k, v [T, D], lr [T], token_scale [m].
    """
    return train(f, loss, q, k, v, lr, token_scale, fresh_state(*weights))[0]
