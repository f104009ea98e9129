"""TTT-Linear and TTT-MLP token by token, as in arXiv 2407.04620, Sections 2.1 to 2.4.

The hidden state of this RNN is a small model f: `linear` for TTT-Linear, `mlp` for TTT-MLP. Each token trains that
model with one gradient step, to reconstruct v from k. The output evaluates the model at q.

    loss(theta; k, v) = 1/2 |LN(f(k; theta)) - (v - k)|^2  # k + LN(f(k)) approximates v
    theta_t = theta - s_i * sum over tokens j <= t of the mini-batch of lr_j * d loss(theta; k_j, v_j) / d theta
    out_t = q_t + LN(f(q_t; theta_t))

The loss is taken at theta, the weights at the start of the mini-batch of m tokens. The m gradients are thus
independent of each other; the fast forms use this. i is the position of token t in its mini-batch. After the last
position theta_t becomes theta. lr_j is the learning rate of token j. s_i = token_scale[i] is the factor of position i,
1/(i+1) in an untrained layer (ttt_layer.md, steps 3 and 4).

Slow and simple: tests compare the other forms with this one. Names are those of ttt_layer.md.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu

EPS = 1e-6

Weights = tuple[Tensor, ...]
ModelFunction = Callable[[Tensor, Weights], Tensor]  # x, weights -> f(x)
Loss = Callable[[Weights, Tensor, Tensor], Tensor]  # weights, k, v -> a scalar


class NaiveState(NamedTuple):
    weights: Weights  # at the start of the current mini-batch
    sums: Weights  # sum of lr_j * d loss_j / d weight over the tokens of this mini-batch so far
    position: int  # number of tokens of this mini-batch so far, 0 to m - 1


def fresh_state(*weights: Tensor) -> NaiveState:
    return NaiveState(weights, tuple(map(torch.zeros_like, weights)), 0)


def linear(x: Tensor, weights: Weights) -> Tensor:
    """Return f(x) = x @ W + b of TTT-Linear, [..., D] for x [..., D]; weights: W [D, D], b [D]."""
    W, b = weights
    return x @ W + b


def mlp(x: Tensor, weights: Weights) -> Tensor:
    """Return f(x) of TTT-MLP, [..., D] for x [..., D]; weights: W1 [D, F], b1 [F], W2 [F, D], b2 [D]."""
    W1, b1, W2, b2 = weights
    return gelu(x @ W1 + b1, approximate="tanh") @ W2 + b2


def layer_norm(z: Tensor, ln_weight: Tensor, ln_bias: Tensor) -> Tensor:
    centred = z - z.mean(-1, keepdim=True)
    return ln_weight * centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() + ln_bias


def train(
    f: ModelFunction,
    loss: Loss,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    state: NaiveState,
    *,
    read_updated: bool = True,
) -> tuple[Tensor, NaiveState]:
    """Train f on each token t, then evaluate f(q_t); return (all f(q_t) [T, D], next state).

    One head of one sequence: q, k, v [T, D], lr [T], token_scale [m].
    loss: function of the weights, k_t and v_t, which returns a scalar.
    read_updated: evaluate f(q_t) with the weights theta_t after token t. False: with those of the mini-batch's start.
    """
    outputs = [q[:0]]
    for t in range(len(q)):
        weights, sums, i = state
        gradients = torch.func.grad(loss)(weights, k[t], v[t])
        sums = tuple(total + lr[t] * gradient for total, gradient in zip(sums, gradients, strict=True))
        weights_t = tuple(w - token_scale[i] * total for w, total in zip(weights, sums, strict=True))
        outputs.append(f(q[t], weights_t if read_updated else weights)[None])
        complete = i == len(token_scale) - 1
        state = fresh_state(*weights_t) if complete else NaiveState(weights, sums, i + 1)
    return torch.cat(outputs), state


def forward(
    model: ModelFunction,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: NaiveState,
    *,
    read_updated: bool = True,
) -> tuple[Tensor, NaiveState]:
    """Return the outputs [T, D] of T tokens of one head, and the state after them.

    model: `linear` or `mlp`. q, k, v [T, D], lr [T], token_scale [m], ln_weight, ln_bias [D].
    read_updated: evaluate `model` at q_t with the weights after token t. False: with those of the mini-batch's start.
    """

    def normalized(x: Tensor, weights: Weights) -> Tensor:
        return layer_norm(model(x, weights), ln_weight, ln_bias)

    def loss(weights: Weights, k: Tensor, v: Tensor) -> Tensor:
        return (normalized(k, weights) - (v - k)).square().sum() / 2

    read, state = train(normalized, loss, q, k, v, lr, token_scale, state, read_updated=read_updated)
    return q + read, state
