"""TTT-MLP generate in Triton: one token per sequence and launch.

The kernels compute the function of `reference.py` in the dual or the primal form (ttt_layer.md, "Three forms").
Each token reads W1 and W2. In the dual form it caches its rows of K, X2, lr * G1 and lr * G2; in the primal form it
adds to the gradient sums. A mini-batch's last token also rewrites W1 and W2.
On Hopper, `generate_sm90.py` runs states that `suits_sm90` accepts. Heads of more than 64 channels run
`generate_wide.py`, only in the dual form. Positions can differ: programs read them from device memory.

Arguments of all kernels for TTT-MLP; the grid is B * H programs:
q, k, v, out [B, H, D], lr [B, H]: one token per sequence, and its output. q_stride and so on: strides over B.
token_scale [m]. ln_weight, ln_bias [H, D]. position [B, H]: tokens so far in the mini-batch.
rope [m, 2, D]: with ROPE, a result of `rope_table`. base_lr: with LOGITS, the rate is base_lr * sigmoid(lr) / D.
weights1, weights2 [S, H, F, D]: W1^T and W2. b1 [S, H, F], b2 [S, H, D]: biases.
low1, low2: with PLANES, the low planes of W1^T and W2; weights1 and weights2 are then the high planes.
rows_k [S, H, m, D], rows_x2 [S, H, m, F]: the layers' cached inputs for the mini-batch's tokens.
rows_g1 [S, H, m, F], rows_g2 [S, H, m, D]: lr times the loss's gradient at the layers' outputs for these tokens.
dW1, db1, dW2, db2: gradient sums, in the shapes of weights and biases.
slots [B]: with SLOTS, each sequence's index in dimension 0 of the state, of size S. Otherwise S = B.
Strides over S: w_stride of weights and low planes, b1_stride and b2_stride of biases,
    d_stride of rows_k and rows_g2, f_stride of rows_x2 and rows_g1.
DP, FP, MP: D, F and m padded to powers of two. BLOCK: hidden units per block. DOT: dtype of matmul operands.
MATRIX (dual form): multiply weights by vectors on tensor cores. PDL (Hopper): programmatic dependent launch.
"""

from dataclasses import replace
from typing import Any

from tk_kernels.checks import check_choice
from tk_kernels.edges import few_rows
from tk_kernels.generate.common import (
    available,
    columns,
    compiles_narrow_dots,
    gelu,
    gelu_grad,
    jit,
    learning_rate,
    ln_l2_grad,
    load_angles,
    load_token,
    load_weights,
    normalise,
    rotate,
    slot_of,
    store_weights,
    tl,
    to_float32_again,
    triton,
)
from tk_kernels.generate.step import StepState, generate_step, portable_constants
from tk_kernels.generate.tuning import Tuning
from tk_kernels.ttt_mlp import generate_sm90, generate_wide
from tk_kernels.ttt_mlp.generate_wide import apply_rows
from tk_kernels.ttt_mlp.reference import MLP

__all__ = ["GenerateState", "available", "generate_step"]

MAX_HEAD_DIM_IN_REGISTERS = 64  # the largest head dimension whose weights fit the registers of a program
WIDE = Tuning(warps=8, block=32)  # settings for wider heads
TUNED_BYTES = 102_400  # shared memory that a block needs with tuned settings for mini-batches over 32


class GenerateState(StepState):
    """State of TTT-MLP's `generate_step`.

    layers: (W1^T, low plane, b1 [B, H, F]) and (W2, low plane, b2 [B, H, D]). W1^T, W2 and low planes: [B, H, F, D].
        A low plane is None unless `precision` is "planes". W1^T and W2 are then the high planes.
    accumulated, dual form: rows of K [B, H, m, D], X2 [B, H, m, F], lr * G1 [B, H, m, F], lr * G2 [B, H, m, D].
    accumulated, primal form: the gradient sums dW1^T, db1, dW2, db2, shaped like weights and biases.
    """

    operator = "ttt_mlp"
    learner = MLP
    sm90_widths = (256, 64)

    def default_launch(self) -> Tuning:
        bias = self.biases()[1]
        fits = self.mini_batch <= 32 or not bias.is_cuda or few_rows.shared_bytes(bias.device) >= TUNED_BYTES
        wide_heads = bias.shape[2] > MAX_HEAD_DIM_IN_REGISTERS
        launch = WIDE if wide_heads or not fits else super().default_launch()
        if wide_heads and self.precision == "float32" and not fits:
            launch = replace(launch, block=16)  # 32 need 112 KB
        return replace(launch, matrix=False, registers=0) if launch.matrix and not compiles_narrow_dots() else launch

    def kernel(self, launch: Tuning) -> tuple[Any, dict[str, Any]]:
        if launch.sm90:
            return generate_sm90.dual, {}
        F, D = (bias.shape[2] for bias in self.biases())
        constants = portable_constants(self, launch.block) | {"F": F}
        if D > MAX_HEAD_DIM_IN_REGISTERS:
            check_choice(f"the form for {D} channels", self.form, ("dual",))
            return generate_wide.dual, constants
        constants |= {"FP": triton.next_power_of_2(F), "MATRIX": launch.matrix}
        return _dual if self.form == "dual" else _primal, constants


@jit
def _dual(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope,
    weights1, low1, b1, weights2, low2, b2, rows_k, rows_x2, rows_g1, rows_g2, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr,
    slots, w_stride, b1_stride, b2_stride, d_stride, f_stride,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
    m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr,
    BLOCK: tl.constexpr, MATRIX: tl.constexpr, DOT: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Run one token of one head of one sequence. The module's docstring defines the arguments."""
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd, rf, rm = tl.arange(0, DP), tl.arange(0, FP), tl.arange(0, MP)
    valid, wide = rd < D, rf < F
    row_type = rows_g1.dtype.element_ty
    pos = tl.load(position + pid)
    slot = slot_of(slots, seq, SLOTS)
    weights1 += slot * w_stride + head * (D * F)
    weights2 += slot * w_stride + head * (D * F)
    b1 += slot * b1_stride + head * F
    b2 += slot * b2_stride + head * D
    rows_k += slot * d_stride + head * (m * D)
    rows_x2 += slot * f_stride + head * (m * F)
    rows_g1 += slot * f_stride + head * (m * F)
    rows_g2 += slot * d_stride + head * (m * D)
    # The compiler moves w1 to shared memory, and waits for it before it loads w2. Loads in between overlap with w1's.
    tile = rf[:, None] * D + rd[None, :]
    w1 = tl.load(weights1 + tile, mask=wide[:, None] & valid[None, :], other=0)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias1 = tl.load(b1 + rf, mask=wide, other=0)
    bias2 = tl.load(b2 + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    at_d, at_f = rm[:, None] * D + rd[None, :], rm[:, None] * F + rf[None, :]
    earlier = rm[:, None] < pos
    past_k = tl.load(rows_k + at_d, mask=earlier & valid[None, :], other=0)
    past_g1 = tl.load(rows_g1 + at_f, mask=earlier & wide[None, :], other=0)
    past_x2 = tl.load(rows_x2 + at_f, mask=earlier & wide[None, :], other=0)
    past_g2 = tl.load(rows_g2 + at_d, mask=earlier & valid[None, :], other=0)
    w2 = tl.load(weights2 + tile, mask=wide[:, None] & valid[None, :], other=0)

    # Z1 = k @ W1 + b1 ; Z1bar = q @ W1 + b1 - s_i * sum_{j < i} (q . k_j + 1) g1_j, and the term of j = i below
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    weight1 = -scale * (tl.sum(qf[None, :] * past_k.to(tl.float32), 1) + 1.0)
    z1, zbar1 = first_matvecs(w1, past_g1, kf, qf, weight1, MATRIX, DOT)
    z1 += bias1
    zbar1 += bias1
    # X2 = gelu(Z1) ; Z2 = X2 @ W2 + b2
    x2 = gelu(z1)
    z2 = sum_rows(w2, x2, MATRIX, DOT) + bias2
    # G2 ; G1 = (G2 @ W2^T) * gelu'(Z1) ; g = lr * G, rounded as it will be cached
    eta = learning_rate(rate, base_lr, D, LOGITS)
    grad2 = ln_l2_grad(z2, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    grad1 = sum_columns(w2, grad2, MATRIX, DOT) * gelu_grad(z1)
    x2 = x2.to(row_type)
    g1 = (eta * grad1).to(row_type)
    g2 = (eta * grad2).to(row_type)
    xbar2 = gelu(zbar1 - scale * (tl.sum(qf * kf, 0) + 1.0) * g1.to(tl.float32))
    # Z2bar = X2bar @ W2 + b2 - s_i * sum_{j <= i} (X2bar . X2_j + 1) g2_j
    zbar2 = sum_rows(w2, xbar2, MATRIX, DOT) + bias2
    weight2 = sum_columns(past_x2, xbar2, MATRIX, DOT) + 1.0
    own2 = tl.sum(xbar2 * x2.to(tl.float32), 0) + 1.0
    zbar2 -= scale * (tl.sum(weight2[:, None] * past_g2.to(tl.float32), 0) + own2 * g2.to(tl.float32))
    xhat, _ = normalise(tl.where(valid, zbar2, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.store(rows_k + pos * D + rd, kf.to(row_type), mask=valid)
    tl.store(rows_x2 + pos * F + rf, x2, mask=wide)
    tl.store(rows_g1 + pos * F + rf, g1, mask=wide)
    tl.store(rows_g2 + pos * D + rd, g2, mask=valid)
    tl.debug_barrier()  # every warp has read the position and the state
    if not SLOTS:
        tl.store(position + pid, tl.where(pos < m - 1, pos + 1, 0))
    if pos == m - 1:
        if PLANES:
            low1 += slot * w_stride + head * (D * F)
            low2 += slot * w_stride + head * (D * F)
        tl.debug_barrier()  # the rows just written are read back
        apply_rows(
            weights1, low1, b1, weights2, low2, b2, rows_k, rows_x2, rows_g1, rows_g2,
            scale, rd, rm, D, F, m, PLANES, BLOCK, DOT,
        )  # fmt: skip


@jit
def sum_columns(w, x, MATRIX: tl.constexpr, DOT: tl.constexpr):
    """Return w @ x [M] in float32, for w [M, N], x [N]. With MATRIX, only w is rounded to DOT: `columns` splits x."""
    return tl.sum(tl.dot(w.to(DOT), columns(x, 0, DOT)), 1) if MATRIX else tl.sum(to_float32_again(w) * x[None, :], 1)


@jit
def sum_rows(w, x, MATRIX: tl.constexpr, DOT: tl.constexpr):
    """Return x @ w [N] in float32, for x [M], w [M, N]. With MATRIX, w is rounded to DOT."""
    if MATRIX:
        w = tl.trans(w)
    return tl.sum(tl.dot(w.to(DOT), columns(x, 0, DOT)), 1) if MATRIX else tl.sum(w.to(tl.float32) * x[:, None], 0)


@jit
def first_matvecs(w1, past_g1, k, q, factors, MATRIX: tl.constexpr, DOT: tl.constexpr):
    """Return (w1 @ k, w1 @ q + factors @ past_g1), both [F] in float32.

    w1 [F, D], k, q [D]. past_g1 [m, F]: earlier tokens' lr * G1. factors [m]: -token_scale[position] * (q . k_j + 1).
    MATRIX: use tensor cores, with w1 and past_g1 rounded to dtype DOT.
    """
    if MATRIX:
        both = tl.dot(w1.to(DOT), columns(k, 0, DOT) + columns(q, 2, DOT))
        both = tl.dot(tl.trans(past_g1.to(DOT)), columns(factors, 2, DOT), both)
        first = (tl.arange(0, 16) < 2)[None, :]
        of_k, of_q = tl.sum(tl.where(first, both, 0.0), 1), tl.sum(tl.where(first, 0.0, both), 1)
    else:
        of_k = tl.sum(w1.to(tl.float32) * k[None, :], 1)
        of_q = tl.sum(to_float32_again(w1) * q[None, :], 1) + tl.sum(past_g1.to(tl.float32) * factors[:, None], 0)
    return of_k, of_q


@jit
def _primal(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope,
    weights1, low1, b1, weights2, low2, b2, dW1, db1, dW2, db2, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
    m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr,
    BLOCK: tl.constexpr, MATRIX: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Run one token of one head of one sequence. The module's docstring defines the arguments."""
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd, rf = tl.arange(0, DP), tl.arange(0, FP)
    valid, wide = rd < D, rf < F
    pos = tl.load(position + pid)
    last = pos == m - 1
    at = pid * (D * F)
    tile = at + rf[:, None] * D + rd[None, :]
    mask = wide[:, None] & valid[None, :]
    w1 = tl.load(weights1 + tile, mask=mask, other=0)
    w2 = tl.load(weights2 + tile, mask=mask, other=0)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias1 = tl.load(b1 + pid * F + rf, mask=wide, other=0)
    bias2 = tl.load(b2 + pid * D + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    # A new mini-batch ignores the stored sums, so no kernel clears them
    sum_b1 = tl.load(db1 + pid * F + rf, mask=wide & (pos > 0), other=0)
    sum_b2 = tl.load(db2 + pid * D + rd, mask=valid & (pos > 0), other=0)

    # Z1 = k @ W1 + b1 ; X2 = gelu(Z1) ; Z2 = X2 @ W2 + b2
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    eta = learning_rate(rate, base_lr, D, LOGITS)
    z1 = tl.sum(w1.to(tl.float32) * kf[None, :], 1) + bias1
    zbar1 = tl.sum(w1.to(tl.float32) * qf[None, :], 1) + bias1
    x2 = gelu(z1)
    z2 = tl.sum(x2[:, None] * w2.to(tl.float32), 0) + bias2
    grad2 = ln_l2_grad(z2, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    g1 = eta * (tl.sum(w2.to(tl.float32) * grad2[None, :], 1) * gelu_grad(z1))
    g2 = eta * grad2
    tl.debug_barrier()  # every warp has read the weights
    # W1_t = W1 - s (dW1 + lr K^T G1) ; X2bar = gelu(q @ W1_t + b1_t)
    sum_W1 = tl.load(dW1 + tile, mask=mask & (pos > 0), other=0) + g1[:, None] * kf[None, :]
    sum_b1 += g1
    xbar2 = gelu(zbar1 - scale * (tl.sum(sum_W1 * qf[None, :], 1) + sum_b1))
    if last:
        x = load_weights(weights1, low1, tile, mask, PLANES) - scale * sum_W1
        store_weights(weights1, low1, tile, x, mask, PLANES)
    else:
        tl.store(dW1 + tile, sum_W1, mask=mask)
    # W2_t = W2 - s (dW2 + lr X2^T G2) ; Z2bar = X2bar @ W2_t + b2_t
    sum_W2 = tl.load(dW2 + tile, mask=mask & (pos > 0), other=0) + x2[:, None] * g2[None, :]
    sum_b2 += g2
    zbar2 = tl.sum(xbar2[:, None] * (w2.to(tl.float32) - scale * sum_W2), 0) + bias2 - scale * sum_b2
    if last:
        x = load_weights(weights2, low2, tile, mask, PLANES) - scale * sum_W2
        store_weights(weights2, low2, tile, x, mask, PLANES)
    else:
        tl.store(dW2 + tile, sum_W2, mask=mask)
    xhat, _ = normalise(tl.where(valid, zbar2, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.debug_barrier()  # every warp has read the position and the biases
    if last:
        tl.store(position + pid, 0)
        tl.store(b1 + pid * F + rf, bias1 - scale * sum_b1, mask=wide)
        tl.store(b2 + pid * D + rd, bias2 - scale * sum_b2, mask=valid)
    else:
        tl.store(position + pid, pos + 1)
        tl.store(db1 + pid * F + rf, sum_b1, mask=wide)
        tl.store(db2 + pid * D + rd, sum_b2, mask=valid)
