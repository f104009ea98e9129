"""The reference of TTT-MLP in PyTorch: the primal, dual and generate forms of one function (naive.py defines it).

f(k) = gelu(k @ W1 + b1) @ W2 + b2, then LN; arXiv 2407.04620, Sections 2.3 to 2.7. Inference only: no autograd.

Precision: the state's dtype, float64 for float64 tokens, else float32. Whole mini-batches of the dual form with
bfloat16 tokens round the inputs of their matmuls (q, k, X2, W1, W2, G1, G2, eta) to bfloat16. Sums and results are
float32, as on tensor cores. The master state is never rounded.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
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


class MLPState(NamedTuple):
    """Weights at the start of the current mini-batch, and the rows of its tokens so far; F = 4 D in the paper.

    W1 [B, H, D, F], b1 [B, H, F], W2 [B, H, F, D], b2 [B, H, D]: master, float32 or float64. k_rows [B, H, m, D] and
    x2_rows [B, H, m, F]: inputs of the two layers; g1_rows [B, H, m, F] and g2_rows [B, H, m, D]: lr_j * G_j. Rows at
    or beyond position hold any finite values. position [B] int32: number of valid rows, 0..m-1.
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
    """Weights at the start of the current mini-batch, and the sums of lr_j times their gradients so far."""

    W1: Tensor
    b1: Tensor
    W2: Tensor
    b2: Tensor
    dW1: Tensor
    db1: Tensor
    dW2: Tensor
    db2: Tensor
    position: Tensor


class MLPTrace(NamedTuple):
    """Result of `train_` for N whole mini-batches, from which `read` computes outputs; in the tokens' dtype.

    W1 [N, B*H, D + 8, F], W2 [N, B*H, F + 8, D]: weights at each mini-batch's start, then a row of biases, then 7 rows
    of 0. X2 [N, B*H, m, F + 8], G1 [N, B*H, m, F], G2 [N, B*H, m, D], both without lr.
    """

    W1: Tensor
    W2: Tensor
    X2: Tensor
    G1: Tensor
    G2: Tensor


class Gradients(NamedTuple):
    """Values of n tokens at the weights of their mini-batch's start, [B, H, n, D or F] in the state's dtype."""

    q: Tensor
    z1: Tensor  # q @ W1 + b1
    k: Tensor
    x2: Tensor  # gelu(k @ W1 + b1)
    g1: Tensor  # lr * G1
    g2: Tensor  # lr * G2


def init_state(
    W1: Tensor,
    b1: Tensor,
    W2: Tensor,
    b2: Tensor,
    batch: int,
    mini_batch: int = 16,
    dtype: torch.dtype = torch.float32,
) -> MLPState:
    """Return the state of `batch` new sequences, from W1 [H, D, F], b1 [H, 1, F], W2 [H, F, D] and b2 [H, 1, D]."""
    heads, head_dim, hidden = W1.shape
    check_shape("b1", b1, (heads, 1, hidden))
    check_shape("W2", W2, (heads, hidden, head_dim))
    check_shape("b2", b2, (heads, 1, head_dim))

    def rows(width: int) -> Tensor:
        return torch.zeros(batch, heads, mini_batch, width, dtype=dtype, device=W1.device)

    W1, b1, W2, b2 = (x.detach().to(dtype).repeat(batch, 1, 1, 1) for x in (W1, b1, W2, b2))
    position = torch.zeros(batch, dtype=torch.int32, device=W1.device)
    x_rows, g_rows = (rows(head_dim), rows(hidden)), (rows(hidden), rows(head_dim))
    return MLPState(W1, b1.squeeze(2), W2, b2.squeeze(2), *x_rows, *g_rows, position)


def primal_state(state: MLPState) -> MLPPrimalState:
    """Return a copy of the state with gradient sums instead of rows."""
    state = clone(state)
    sums1 = summed_rows(state.k_rows, state.g1_rows, state.position)
    sums2 = summed_rows(state.x2_rows, state.g2_rows, state.position)
    return MLPPrimalState(state.W1, state.b1, state.W2, state.b2, *sums1, *sums2, state.position)


class MLPLearner(Learner[MLPState, MLPPrimalState, MLPTrace]):
    """TTT-MLP in PyTorch; Learner documents its methods."""

    together = 16

    def shapes(
        self, state: MLPState | MLPPrimalState, batch: int, heads: int, head_dim: int, mini_batch: int
    ) -> dict[str, tuple[int, ...]]:
        hidden = state.W1.shape[-1]
        first, second = (batch, heads, head_dim, hidden), (batch, heads, hidden, head_dim)
        shapes: dict[str, tuple[int, ...]] = {"W1": first, "W2": second, "position": (batch,)}
        shapes |= {"b1": (batch, heads, hidden), "b2": (batch, heads, head_dim)}
        if isinstance(state, MLPPrimalState):
            shapes |= {"dW1": first, "dW2": second, "db1": shapes["b1"], "db2": shapes["b2"]}
        else:
            shapes |= dict.fromkeys(("k_rows", "g2_rows"), (batch, heads, mini_batch, head_dim))
            shapes |= dict.fromkeys(("x2_rows", "g1_rows"), (batch, heads, mini_batch, hidden))
        return shapes

    def train_(self, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: MLPState) -> MLPTrace:
        """Train with 16 launches per mini-batch."""
        mini_batch, batch, hidden = len(outer.token_scale), len(k), state.W1.shape[-1]
        keys = with_bias_input(tiled(k, mini_batch))
        last_eta = outer.token_scale[-1] * tiled(lr, mini_batch).unsqueeze(-1)
        steps = (last_eta * keys).to(k.dtype).mT
        rates = last_eta.to(k.dtype)
        offsets = tiled(gradient_offset(k, v, outer), mini_batch)
        weight_squared = outer.ln_weight.square().repeat(batch, 1).unsqueeze(1)
        weights1, weights2 = packed(state.W1, state.b1), packed(state.W2, state.b2)
        trace = _empty_trace(k, weights1, weights2, len(keys), mini_batch)
        for key, step, rate, offset, W1, W2, X2, G1, G2 in zip(keys, steps, rates, offsets, *trace, strict=True):
            W1.copy_(weights1)
            W2.copy_(weights2)
            z1 = matmul(key, W1)  # Z1 = K @ W1 + b1
            X2[..., :hidden].copy_(gelu(z1))
            G2.copy_(ln_l2_grad(matmul(X2, W2), offset, weight_squared))  # Z2 = X2 @ W2 + b2
            G1.copy_(gelu_backward(matmul(G2, W2[:, :hidden].mT), z1))  # G1 = (G2 @ W2^T) * gelu'(Z1)
            subtract_matmul_(weights1, step, G1)  # W1 <- W1 - (eta_last^T * K)^T @ G1, and b1
            subtract_matmul_(weights2, X2.mT, rate * G2)  # W2 <- W2 - (eta_last^T * X2)^T @ G2, and b2
        unpack_(weights1, state.W1, state.b1)
        unpack_(weights2, state.W2, state.b2)
        return trace

    def read(self, q: Tensor, k: Tensor, lr: Tensor, outer: Outer, trace: MLPTrace) -> Tensor:
        """Return out = Q + LN(Z2bar) of all mini-batches, computed through Z1bar and X2bar = gelu(Z1bar)."""
        mini_batch = len(outer.token_scale)
        queries, keys = (with_bias_input(tiled(x, mini_batch).flatten(0, 1)) for x in (q, k))
        eta = causal_eta(tiled(lr, mini_batch).flatten(0, 1), outer.token_scale)
        W1, W2, X2, G1, G2 = (x.flatten(0, 1) for x in trace)
        z1 = read_layer(queries, W1, keys, G1, eta)
        x2 = with_bias_input(gelu(z1).to(q.dtype))
        z2 = read_layer(x2, W2, X2, G2, eta)
        return output(untiled(z2.unflatten(0, (len(trace.W1), -1)), len(q)), q, outer)

    def advance_(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        outer: Outer,
        state: MLPState,
        form: str = "dual",
        start: int = 0,
    ) -> Tensor:
        token_scale, n = outer.token_scale, q.shape[1]
        positions = positions_of(state.position, n)
        layer1 = (state.W1, state.b1, state.k_rows, state.g1_rows)
        layer2 = (state.W2, state.b2, state.x2_rows, state.g2_rows)
        new = _gradients(q, k, v, lr, outer, state)
        for rows, x in ((layer1[2], new.k), (layer1[3], new.g1), (layer2[2], new.x2), (layer2[3], new.g2)):
            write_rows_(rows, x, positions)
        if form == "dual":
            scale = causal_scale(positions, token_scale)
            z1 = new.z1 - row_correction(new.q, *layer1[2:], scale)
            x2 = gelu(z1)
            z2 = affine(x2, *layer2[:2]) - row_correction(x2, *layer2[2:], scale)
        else:
            z1 = stepped_affine(new.q, *layer1, token_scale, start)
            z2 = stepped_affine(gelu(z1), *layer2, token_scale, start)
        last = completion_scale(positions, token_scale)
        apply_rows_(*layer1, last)
        apply_rows_(*layer2, last)
        advance_position_(state.position, n, len(token_scale))
        return output(z2.transpose(1, 2), q, outer)

    def advance_sums_(self, q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: MLPPrimalState) -> Tensor:
        positions = positions_of(state.position, 1)
        scale = outer.token_scale[positions][:, None, :, None]
        sums1, sums2 = (state.dW1, state.db1), (state.dW2, state.db2)
        new = _gradients(q, k, v, lr, outer, state)
        add_to_sums_(*sums1, new.k, new.g1)
        add_to_sums_(*sums2, new.x2, new.g2)
        z1 = new.z1 - sum_correction(new.q, *sums1, scale)
        x2 = gelu(z1)
        z2 = affine(x2, state.W2, state.b2) - sum_correction(x2, *sums2, scale)
        apply_sums_(state.W1, state.b1, *sums1, positions, outer.token_scale)
        apply_sums_(state.W2, state.b2, *sums2, positions, outer.token_scale)
        advance_position_(state.position, 1, len(outer.token_scale))
        return output(z2.transpose(1, 2), q, outer)


def _empty_trace(k: Tensor, W1: Tensor, W2: Tensor, count: int, mini_batch: int) -> MLPTrace:
    """Allocate the trace of `count` mini-batches, with W1 and W2 packed; only the bias input of X2 is set."""
    hidden, head_dim = W1.shape[-1], W2.shape[-1]

    def rows(width: int) -> Tensor:
        return k.new_empty(count, len(W1), mini_batch, width)

    X2 = with_bias_input(rows(hidden))
    return MLPTrace(k.new_empty(count, *W1.shape), k.new_empty(count, *W2.shape), X2, rows(hidden), rows(head_dim))


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: MLPState | MLPPrimalState
) -> Gradients:
    """Compute the gradients of n tokens at the weights of their mini-batch's start; W1 is read once."""
    q, k, offset = (x.to(state.W1.dtype).transpose(1, 2) for x in (q, k, gradient_offset(k, v, outer)))
    z1q, z1k = affine(torch.cat((q, k), 2), state.W1, state.b1).chunk(2, 2)
    x2 = gelu(z1k)
    z2 = affine(x2, state.W2, state.b2)
    rate = lr.transpose(1, 2).unsqueeze(-1)
    g2 = rate * ln_l2_grad(z2, offset, outer.ln_weight.square().unsqueeze(1))
    g1 = gelu_backward(g2 @ state.W2.mT, z1k)
    return Gradients(q, z1q, k, x2, g1, g2)


def gelu(z: Tensor) -> Tensor:
    """GELU in its tanh form."""
    return F.gelu(z, approximate="tanh")


def gelu_backward(grad: Tensor, z: Tensor) -> Tensor:
    """Return grad * gelu'(z)."""
    return torch.ops.aten.gelu_backward(grad, z, approximate="tanh")


MLP = MLPLearner()
forward, generate_step, states, outputs = MLP.forward, MLP.generate_step, MLP.states, MLP.outputs
