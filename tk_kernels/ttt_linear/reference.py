"""The PyTorch reference of TTT-Linear, f(k) = k @ W + b; `learner` computes it."""

from typing import NamedTuple

from torch import Tensor

from tk_kernels.reference.learner import Learner


class LinearState(NamedTuple):
    """Weights at a mini-batch's start, and cached rows of the mini-batch's tokens so far.

    W [B, H, D, D] and b [B, H, D]: master weights, float32 or float64.
    k_rows, g_rows [B, H, m, D]: inputs k_j, and lr_j times the loss's gradient G_j at the output.
    position [B] int32: number of valid rows, 0 to m - 1. Rows from `position` on are finite and ignored.
    """

    W: Tensor
    b: Tensor
    k_rows: Tensor
    g_rows: Tensor
    position: Tensor


LINEAR = Learner(LinearState, max_parallel=32)
forward, generate_step, states, outputs = LINEAR.forward, LINEAR.generate_step, LINEAR.states, LINEAR.outputs
init_state, primal_state = LINEAR.init_state, LINEAR.primal_state
