"""The PyTorch reference of TTT-Linear, f(k) = k @ W + b; its arithmetic is in `learner`."""

from typing import NamedTuple

import torch
from torch import Tensor

from tk_kernels.reference.learner import Learner


class LinearState(NamedTuple):
    """State with rows: weights at the mini-batch's start, and a row per token so far.

    W [B, H, D, D] and b [B, H, D]: master weights, float32 or float64.
    k_rows, g_rows [B, H, m, D]: inputs k_j, and lr_j times the loss's gradient G_j at the output.
    position [B] int32: number of valid rows, 0..m-1. Rows from `position` on are finite and ignored.
    """

    W: Tensor
    b: Tensor
    k_rows: Tensor
    g_rows: Tensor
    position: Tensor


class LinearPrimalState(NamedTuple):
    """State with gradient sums: weights at the mini-batch's start, and sums over its tokens.

    dW [B, H, D, D] is the sum of lr_j k_j^T G_j, db [B, H, D] that of lr_j G_j. W, b and position: as in `LinearState`.
    """

    W: Tensor
    b: Tensor
    dW: Tensor
    db: Tensor
    position: Tensor


LINEAR = Learner(LinearState, LinearPrimalState, together=32)
forward, generate_step, states, outputs = LINEAR.forward, LINEAR.generate_step, LINEAR.states, LINEAR.outputs
primal_state = LINEAR.primal_state


def init_state(
    W: Tensor, b: Tensor, batch: int, mini_batch: int = 16, dtype: torch.dtype = torch.float32
) -> LinearState:
    """Return the state of `batch` new sequences, from W [H, D, D] and b [H, 1, D]."""
    return LINEAR.init_state((W, b), batch, mini_batch, dtype)
