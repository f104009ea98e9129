"""TTT-MLP token by token, as one would write it from the paper (arXiv 2407.04620, Sections 2.1 to 2.4).

The hidden state of this RNN is a two-layer model f(x) = gelu(x @ W1 + b1) @ W2 + b2, gelu by tanh. Each token
trains that model a little: it learns to reconstruct v from k. The output is the trained model at q.

    loss(theta; k, v) = 1/2 |LN(f(k; theta)) - (v - k)|^2  # theta = W1, b1, W2, b2; k + LN(f(k)) approximates v
    theta_t = theta - s_i * sum over tokens j <= t of the mini-batch of lr_j * d loss(theta; k_j, v_j) / d theta
    out_t = q_t + LN(f(q_t; theta_t))

theta inside the loss is that at the start of the mini-batch of m tokens. Its m gradients are thus independent of each
other; the fast forms use this. i is the position of token t in its mini-batch. After the last position theta_t becomes
theta. lr_j is the learning rate of token j. s_i = token_scale[i] is the factor of position i, 1/(i+1) in an untrained
layer (ttt_layer.md, steps 3 and 4).

Slow and simple: all other forms are tested against this one. Names are those of ttt_layer.md.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu

EPS = 1e-6

Weights = tuple[Tensor, Tensor, Tensor, Tensor]  # W1 [D, F], b1 [F], W2 [F, D], b2 [D]; F = 4D


class State(NamedTuple):
    """The learner of one head of one sequence: its weights at the mini-batch's start, and gradient sums since."""

    weights: Weights
    sums: Weights  # of lr_j * d loss_j / d weight over the tokens of this mini-batch so far
    position: int  # tokens of this mini-batch so far, 0 to m - 1


def fresh_state(W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor) -> State:
    """Return the state of a new sequence with these weights."""
    zeros = (torch.zeros_like(W1), torch.zeros_like(b1), torch.zeros_like(W2), torch.zeros_like(b2))
    return State((W1, b1, W2, b2), zeros, 0)


def layer_norm(z: Tensor, ln_weight: Tensor, ln_bias: Tensor) -> Tensor:
    """Apply LayerNorm over the last dimension, with the biased variance."""
    centred = z - z.mean(-1, keepdim=True)
    return ln_weight * centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() + ln_bias


def step(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, token_scale: Tensor, ln_weight: Tensor, ln_bias: Tensor, state: State
) -> tuple[Tensor, State]:
    """Run a token of a head: q, k, v, ln_weight, ln_bias [D], lr [], token_scale [m] -> out [D] and the next state."""

    def f(x: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor) -> Tensor:
        return gelu(x @ W1 + b1, approximate="tanh") @ W2 + b2

    def loss(*weights: Tensor) -> Tensor:
        return (layer_norm(f(k, *weights), ln_weight, ln_bias) - (v - k)).square().sum() / 2

    i = state.position
    gradients = torch.func.grad(loss, argnums=(0, 1, 2, 3))(*state.weights)
    dW1, db1, dW2, db2 = (total + lr * grad for total, grad in zip(state.sums, gradients, strict=True))
    W1, b1, W2, b2 = state.weights
    s_i = token_scale[i]
    weights_t = (W1 - s_i * dW1, b1 - s_i * db1, W2 - s_i * dW2, b2 - s_i * db2)
    out = q + layer_norm(f(q, *weights_t), ln_weight, ln_bias)
    if i == len(token_scale) - 1:  # the mini-batch is complete
        return out, fresh_state(*weights_t)
    return out, State(state.weights, (dW1, db1, dW2, db2), i + 1)


def forward(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, token_scale: Tensor, ln_weight: Tensor, ln_bias: Tensor, state: State
) -> tuple[Tensor, State]:
    """Run T tokens of one head in order: q, k, v [T, D], lr [T] -> out [T, D] and the state after them."""
    outputs = [q[:0]]
    for t in range(len(q)):
        out, state = step(q[t], k[t], v[t], lr[t], token_scale, ln_weight, ln_bias, state)
        outputs.append(out[None])
    return torch.cat(outputs), state
