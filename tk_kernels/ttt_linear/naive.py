"""TTT-Linear token by token, as one would write it from the paper (arXiv 2407.04620, Sections 2.1 to 2.4).

The hidden state of this RNN is a linear model f(x; W, b) = x @ W + b. Each token trains that model a little:
it learns to reconstruct v from k. The output is the trained model at q.

    loss(W, b; k, v) = 1/2 |LN(f(k; W, b)) - (v - k)|^2   # residual: k + LN(f(k)) approximates v
    W_t = W - s_i * (sum of lr_j * d loss(W, b; k_j, v_j) / dW over j <= t in this mini-batch)      # likewise b_t
    out_t = q_t + LN(f(q_t; W_t, b_t))

W and b inside the loss are those at the start of the mini-batch of m tokens. Its m gradients are thus independent of
each other; the fast forms use this. i is the position of token t in its mini-batch. After the last position W_t becomes
W. lr_j is the learning rate of token j. s_i = token_scale[i] is the factor of position i, 1/(i+1) in an untrained layer
(ttt_layer.md, steps 3 and 4).

Slow and simple: all other forms are tested against this one. Names are those of ttt_layer.md.
"""

from typing import NamedTuple

import torch
from torch import Tensor

EPS = 1e-6


class State(NamedTuple):
    """The learner of one head of one sequence: W [D, D] and b [D] at the mini-batch's start, gradient sums since."""

    W: Tensor
    b: Tensor
    dW: Tensor  # sum of lr_j * d loss_j / dW over the tokens of this mini-batch so far
    db: Tensor
    position: int  # tokens of this mini-batch so far, 0 to m - 1


def fresh_state(W: Tensor, b: Tensor) -> State:
    """Return the state of a new sequence with weights W and b."""
    return State(W, b, torch.zeros_like(W), torch.zeros_like(b), 0)


def layer_norm(z: Tensor, ln_weight: Tensor, ln_bias: Tensor) -> Tensor:
    """Apply LayerNorm over the last dimension, with the biased variance."""
    centred = z - z.mean(-1, keepdim=True)
    return ln_weight * centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() + ln_bias


def step(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, token_scale: Tensor, ln_weight: Tensor, ln_bias: Tensor, state: State
) -> tuple[Tensor, State]:
    """Run a token of a head: q, k, v, ln_weight, ln_bias [D], lr [], token_scale [m] -> out [D] and the next state."""

    def f(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
        return x @ W + b

    def loss(W: Tensor, b: Tensor) -> Tensor:
        return (layer_norm(f(k, W, b), ln_weight, ln_bias) - (v - k)).square().sum() / 2

    W, b, dW, db, i = state
    grad_W, grad_b = torch.func.grad(loss, argnums=(0, 1))(W, b)
    dW, db = dW + lr * grad_W, db + lr * grad_b
    W_t, b_t = W - token_scale[i] * dW, b - token_scale[i] * db
    out = q + layer_norm(f(q, W_t, b_t), ln_weight, ln_bias)
    if i == len(token_scale) - 1:  # the mini-batch is complete
        return out, fresh_state(W_t, b_t)
    return out, State(W, b, dW, db, i + 1)


def forward(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, token_scale: Tensor, ln_weight: Tensor, ln_bias: Tensor, state: State
) -> tuple[Tensor, State]:
    """Run T tokens of one head in order: q, k, v [T, D], lr [T] -> out [T, D] and the state after them."""
    outputs = [q[:0]]
    for t in range(len(q)):
        out, state = step(q[t], k[t], v[t], lr[t], token_scale, ln_weight, ln_bias, state)
        outputs.append(out[None])
    return torch.cat(outputs), state
