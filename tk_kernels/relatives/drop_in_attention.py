"""TTT-Linear in place of attention, without learned outer parameters.

`attention` reads an attention layer's q, k and v, to try TTT in a model without training a new layer. LayerNorm has
weight 1 and bias 0, the token scale is 1/(i+1), and the learning rate is the untrained layer's, sigmoid(0) / D.
Source: a post of November 2024. The post's layer has no LayerNorm, residual or mini-batches, so its outputs differ.
"""

import torch
from torch import Tensor

from tk_kernels.checks import STATE_DTYPE
from tk_kernels.ttt_linear.reference import LinearState, init_state
from tk_kernels.ttt_linear.reference import forward as linear_forward


def fresh_state(q: Tensor, *, mini_batch: int = 16) -> LinearState:
    """Return an initial state for q [B, T, H, D]: per head, random W (std 0.02) and b = 0."""
    batch, _, heads, head_dim = q.shape
    W = 0.02 * torch.randn(heads, head_dim, head_dim, generator=torch.Generator().manual_seed(0))
    b = torch.zeros(heads, 1, head_dim)
    dtype = STATE_DTYPE[q.dtype]
    return init_state(W.to(q.device), b.to(q.device), batch=batch, mini_batch=mini_batch, dtype=dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, state: LinearState | None = None) -> tuple[Tensor, LinearState]:
    """Return TTT-Linear's outputs [B, T, H, D] and next state. Default state: `fresh_state(q)`."""
    state = fresh_state(q) if state is None else state
    dtype, (heads, head_dim) = STATE_DTYPE[q.dtype], q.shape[2:]
    mini_batch = state.k_rows.shape[2]
    lr = torch.full(q.shape[:-1], 0.5 / head_dim, dtype=dtype, device=q.device)
    token_scale = 1 / torch.arange(1, mini_batch + 1, dtype=dtype, device=q.device)
    ln_weight = torch.ones(heads, head_dim, dtype=dtype, device=q.device)
    return linear_forward(q, k, v, lr, token_scale, ln_weight, torch.zeros_like(ln_weight), state)
