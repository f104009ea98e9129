"""The reference of TTT-Linear in PyTorch: the primal, dual and generate forms of one function (naive.py defines it).

f(k) = k @ W + b, then LN; arXiv 2407.04620, Sections 2.3 to 2.7. Inference only: no autograd.

Precision: the state's dtype, float64 for float64 tokens, else float32. Whole mini-batches of the dual form with
bfloat16 tokens round the inputs of their matmuls (q, k, W, G, eta) to bfloat16. Sums and results are float32, as on
tensor cores. The master state is never rounded.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tk_kernels.checks import check_shape
from tk_kernels.reference.layer import Outer, gradient_offset, ln_l2_grad, output
from tk_kernels.reference.learner import Learner
from tk_kernels.reference.mini_batches import (
    causal_eta,
    matmul,
    packed,
    read_layer,
    subtract_matmul_,
    tiled,
    unpack_,
    untiled,
    with_bias_input,
)
from tk_kernels.reference.token_rows import (
    add_to_sums_,
    advance_position_,
    affine,
    apply_rows_,
    apply_sums_,
    causal_scale,
    clone,
    completion_scale,
    positions_of,
    row_correction,
    stepped_affine,
    sum_correction,
    summed_rows,
    write_rows_,
)


class LinearState(NamedTuple):
    """Weights at the start of the current mini-batch, and the rows of its tokens so far.

    W [B, H, D, D] and b [B, H, D]: master, float32 or float64. k_rows, g_rows [B, H, m, D]: inputs and lr_j * G_j;
    rows at or beyond position hold any finite values. position [B] int32: number of valid rows, 0..m-1.
    """

    W: Tensor
    b: Tensor
    k_rows: Tensor
    g_rows: Tensor
    position: Tensor


class LinearPrimalState(NamedTuple):
    """Weights at the start of the current mini-batch, and dW, db: sums of lr_j k_j^T G_j and lr_j G_j so far."""

    W: Tensor
    b: Tensor
    dW: Tensor
    db: Tensor
    position: Tensor


class LinearTrace(NamedTuple):
    """Result of `train_` for N whole mini-batches, from which `read` computes outputs; in the tokens' dtype.

    W [N, B*H, D + 8, D]: weights at each mini-batch's start, row D the bias, then 7 zero rows.
    G [N, B*H, m, D]: gradients without lr.
    """

    W: Tensor
    G: Tensor


def init_state(
    W: Tensor, b: Tensor, batch: int, mini_batch: int = 16, dtype: torch.dtype = torch.float32
) -> LinearState:
    """Return the state of `batch` new sequences, from the parameters W [H, D, D] and b [H, 1, D]."""
    heads, head_dim = W.shape[:2]
    check_shape("W", W, (heads, head_dim, head_dim))
    check_shape("b", b, (heads, 1, head_dim))
    rows = torch.zeros(batch, heads, mini_batch, head_dim, dtype=dtype, device=W.device)
    return LinearState(
        W.detach().to(dtype).repeat(batch, 1, 1, 1),
        b.detach().to(dtype)[:, 0].repeat(batch, 1, 1),
        rows,
        rows.clone(),
        torch.zeros(batch, dtype=torch.int32, device=W.device),
    )


def primal_state(state: LinearState) -> LinearPrimalState:
    """Return a copy of the state with gradient sums instead of rows."""
    state = clone(state)
    sums = summed_rows(state.k_rows, state.g_rows, state.position)
    return LinearPrimalState(state.W, state.b, *sums, state.position)


class LinearLearner(Learner[LinearState, LinearPrimalState, LinearTrace]):
    """TTT-Linear in PyTorch; Learner documents its methods."""

    together = 32

    def shapes(
        self, state: LinearState | LinearPrimalState, batch: int, heads: int, head_dim: int, mini_batch: int
    ) -> dict[str, tuple[int, ...]]:
        matrix, vector = (batch, heads, head_dim, head_dim), (batch, heads, head_dim)
        shapes: dict[str, tuple[int, ...]] = {"W": matrix, "b": vector, "position": (batch,)}
        if isinstance(state, LinearPrimalState):
            shapes |= {"dW": matrix, "db": vector}
        else:
            shapes |= dict.fromkeys(("k_rows", "g_rows"), (batch, heads, mini_batch, head_dim))
        return shapes

    def train_(self, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: LinearState) -> LinearTrace:
        """Train with seven launches per mini-batch."""
        mini_batch, batch = len(outer.token_scale), len(k)
        keys = with_bias_input(tiled(k, mini_batch))
        last_eta = outer.token_scale[-1] * tiled(lr, mini_batch).unsqueeze(-1)
        steps = (last_eta * keys).to(k.dtype).mT
        offsets = tiled(gradient_offset(k, v, outer), mini_batch)
        weight_squared = outer.ln_weight.square().repeat(batch, 1).unsqueeze(1)
        weights = packed(state.W, state.b)
        trace = LinearTrace(k.new_empty(len(keys), *weights.shape), k.new_empty(offsets.shape))
        for key, step, offset, W, G in zip(keys, steps, offsets, *trace, strict=True):
            W.copy_(weights)
            G.copy_(ln_l2_grad(matmul(key, W), offset, weight_squared))  # Z = K @ W + b
            subtract_matmul_(weights, step, G)  # W <- W - (eta_last^T * K)^T @ G, and b
        unpack_(weights, state.W, state.b)
        return trace

    def read(self, q: Tensor, k: Tensor, lr: Tensor, outer: Outer, trace: LinearTrace) -> Tensor:
        """Return out = Q + LN(Zbar) of all mini-batches, with Zbar = Q @ W + b - tril(eta * (Q @ K^T + 1)) @ G."""
        mini_batch = len(outer.token_scale)
        queries, keys = (with_bias_input(tiled(x, mini_batch).flatten(0, 1)) for x in (q, k))
        eta = causal_eta(tiled(lr, mini_batch).flatten(0, 1), outer.token_scale)
        W, G = (x.flatten(0, 1) for x in trace)
        z = read_layer(queries, W, keys, G, eta)
        return output(untiled(z.unflatten(0, (len(trace.W), -1)), len(q)), q, outer)

    def advance_(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        outer: Outer,
        state: LinearState,
        form: str = "dual",
        start: int = 0,
    ) -> Tensor:
        token_scale, n = outer.token_scale, q.shape[1]
        positions = positions_of(state.position, n)
        layer = (state.W, state.b, state.k_rows, state.g_rows)
        qh, kh, z, gh = _gradients(q, k, v, lr, outer, state)
        write_rows_(state.k_rows, kh, positions)
        write_rows_(state.g_rows, gh, positions)
        if form == "dual":
            z = z - row_correction(qh, *layer[2:], causal_scale(positions, token_scale))
        else:
            z = stepped_affine(qh, *layer, token_scale, start)
        apply_rows_(*layer, completion_scale(positions, token_scale))
        advance_position_(state.position, n, len(token_scale))
        return output(z.transpose(1, 2), q, outer)

    def advance_sums_(
        self, q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: LinearPrimalState
    ) -> Tensor:
        positions = positions_of(state.position, 1)
        sums = (state.dW, state.db)
        qh, kh, z, gh = _gradients(q, k, v, lr, outer, state)
        add_to_sums_(*sums, kh, gh)
        z = z - sum_correction(qh, *sums, outer.token_scale[positions][:, None, :, None])
        apply_sums_(state.W, state.b, *sums, positions, outer.token_scale)
        advance_position_(state.position, 1, len(outer.token_scale))
        return output(z.transpose(1, 2), q, outer)


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: LinearState | LinearPrimalState
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, q @ W + b and lr * G, each [B, H, n, D] in the state's dtype; W is read once."""
    q, k, offset = (x.to(state.W.dtype).transpose(1, 2) for x in (q, k, gradient_offset(k, v, outer)))
    zq, zk = affine(torch.cat((q, k), 2), state.W, state.b).chunk(2, 2)
    G = ln_l2_grad(zk, offset, outer.ln_weight.square().unsqueeze(1))
    return q, k, zq, lr.transpose(1, 2).unsqueeze(-1) * G


LINEAR = LinearLearner()
forward, generate_step, states, outputs = LINEAR.forward, LINEAR.generate_step, LINEAR.states, LINEAR.outputs
