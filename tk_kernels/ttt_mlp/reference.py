"""The PyTorch reference of TTT-MLP, f(k) = gelu(k @ W1 + b1) @ W2 + b2; see `learner`."""

from typing import NamedTuple

import torch
from torch import Tensor

from tk_kernels.reference.learner import Learner


class MLPState(NamedTuple):
    """State with rows: weights at the mini-batch's start, and a row per token so far.

    W1 [B, H, D, F], b1 [B, H, F], W2 [B, H, F, D], b2 [B, H, D]: master weights, float32 or float64. F = 4 D in the
    paper. k_rows [B, H, m, D] and x2_rows [B, H, m, F]: inputs of the two layers.
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


class MLPPrimalState(NamedTuple):
    """State with gradient sums: weights at the mini-batch's start, and sums over its tokens.

    dW1, db1, dW2 and db2 are sums of lr_j times the gradients, shaped like the weights and biases. The other tensors
    are as in `MLPState`.
    """

    W1: Tensor
    b1: Tensor
    W2: Tensor
    b2: Tensor
    dW1: Tensor
    db1: Tensor
    dW2: Tensor
    db2: Tensor
    position: Tensor


MLP = Learner(MLPState, MLPPrimalState, together=16)
forward, generate_step, states, outputs = MLP.forward, MLP.generate_step, MLP.states, MLP.outputs
primal_state = MLP.primal_state


def init_state(
    W1: Tensor,
    b1: Tensor,
    W2: Tensor,
    b2: Tensor,
    batch: int,
    mini_batch: int = 16,
    dtype: torch.dtype = torch.float32,
) -> MLPState:
    """Return the state of `batch` new sequences, from W1 [H, D, F], b1 [H, 1, F], W2 [H, F, D], b2 [H, 1, D]."""
    return MLP.init_state((W1, b1, W2, b2), batch, mini_batch, dtype)
