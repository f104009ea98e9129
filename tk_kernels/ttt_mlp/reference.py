"""PyTorch reference of TTT-MLP, f(k) = gelu(k @ W1 + b1) @ W2 + b2; `learner` computes it."""

from typing import NamedTuple

from torch import Tensor

from tk_kernels.reference.learner import Learner


class MLPState(NamedTuple):
    """Weights at a mini-batch's start, and cached rows of the mini-batch's tokens so far.

    W1 [B, H, D, F], b1 [B, H, F], W2 [B, H, F, D], b2 [B, H, D]: master weights, float32 or float64 (paper: F = 4 D).
    k_rows [B, H, m, D] and x2_rows [B, H, m, F]: inputs of the two layers.
    g1_rows [B, H, m, F] and g2_rows [B, H, m, D]: learning rate times the loss's gradient at the two layers' outputs.
    position [B] int32: number of valid rows, 0 to m - 1. Rows from `position` on are finite and ignored.
    """

    W1: Tensor
    b1: Tensor
    W2: Tensor
    b2: Tensor
    k_rows: Tensor
    x2_rows: Tensor
    g1_rows: Tensor
    g2_rows: Tensor
    position: Tensor


MLP = Learner(MLPState, max_parallel=16)
forward, generate_step, states, outputs = MLP.forward, MLP.generate_step, MLP.states, MLP.outputs
init_state, primal_state = MLP.init_state, MLP.primal_state
