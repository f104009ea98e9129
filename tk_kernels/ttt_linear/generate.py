"""TTT-Linear generate in Triton: one token per sequence and launch.

The kernels compute the function of `reference.py` in the dual or the primal form (ttt_layer.md, "Three forms").
Each token reads W. In the dual form it caches its rows of K and lr * G; in the primal form it adds lr * K^T G to a
sum. A mini-batch's last token also rewrites W. On Hopper, `generate_sm90.py` runs states that `suits_sm90` accepts.
Programs read positions from device memory, so positions can differ, and a CUDA graph can replay the launch.

Arguments of all kernels for TTT-Linear; the grid is B * H programs:
q, k, v, out [B, H, D], lr [B, H]: one token per sequence, and its output. q_stride and so on: strides over B.
token_scale [m]. ln_weight, ln_bias [H, D]. position [B, H]: tokens so far in the mini-batch.
rope [m, 2, D]: with ROPE, a result of `rope_table`. base_lr: with LOGITS, the rate is base_lr * sigmoid(lr) / D.
weights [S, H, D, D], b [S, H, D]: W and b. low: with PLANES, the low plane of W, and `weights` is the high plane.
rows_k, rows_g [S, H, m, D]: cached keys and lr * G of the mini-batch's tokens. G: loss's gradient at Z = K W + b.
dW, db: gradient sums, in the shapes of W and b. Strides over S: w_stride (also of low), b_stride, row_stride.
slots [B]: with SLOTS, each sequence's index in dimension 0 of the state, of size S. Otherwise S = B.
DP, MP: D and m padded to powers of two. BLOCK: rows of W rewritten at a time.
DOT: dtype of matmul operands. PDL (Hopper): use programmatic dependent launch.
"""

from dataclasses import replace
from typing import Any

from tk_kernels.generate.common import (
    available,
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
)
from tk_kernels.generate.step import StepState, generate_step, portable_constants
from tk_kernels.generate.tuning import Tuning
from tk_kernels.ttt_linear import generate_sm90
from tk_kernels.ttt_linear.reference import LINEAR

__all__ = ["GenerateState", "available", "generate_step"]


class GenerateState(StepState):
    """State of TTT-Linear's `generate_step`.

    layers: one tuple (W [B, H, D, D], low, b [B, H, D] float32). With precision "planes", W is the bfloat16 high plane
        of the weights, and low [B, H, D, D] their int16 low plane. Otherwise, low is None.
    accumulated, dual form: cached rows of K and of lr * G, each [B, H, m, D]. G is the loss's gradient at K W + b.
    accumulated, primal form: the gradient sums dW [B, H, D, D] and db [B, H, D].
    """

    operator = "ttt_linear"
    learner = LINEAR
    sm90_widths = (64,)

    def default_launch(self) -> Tuning:
        launch = super().default_launch()
        # The settings are for heads of 64. W of wider heads is padded to 128 x 128 and would spill registers.
        return replace(launch, warps=4 * launch.warps) if self.biases()[0].shape[2] > 64 else launch

    def kernel(self, launch: Tuning) -> tuple[Any, dict[str, Any]]:
        if launch.sm90:
            return generate_sm90.dual, {}
        return _dual if self.form == "dual" else _primal, portable_constants(self, launch.block)


@jit
def _dual(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope, weights, low, b, rows_k, rows_g, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr, slots, w_stride, b_stride, row_stride,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """Run one token of one head of one sequence. The module's docstring defines the arguments."""
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd, rm = tl.arange(0, DP), tl.arange(0, MP)
    valid = rd < D
    pos = tl.load(position + pid)
    slot = slot_of(slots, seq, SLOTS)
    weights += slot * w_stride + head * (D * D)
    b += slot * b_stride + head * D
    rows_k += slot * row_stride + head * (m * D)
    rows_g += slot * row_stride + head * (m * D)
    if PLANES:
        low += slot * w_stride + head * (D * D)
    w = tl.load(weights + rd[:, None] * D + rd[None, :], mask=valid[:, None] & valid[None, :], other=0)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias = tl.load(b + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    rows_at = rm[:, None] * D + rd[None, :]
    cached = (rm[:, None] < pos) & valid[None, :]
    past_k = tl.load(rows_k + rows_at, mask=cached, other=0)
    past_g = tl.load(rows_g + rows_at, mask=cached, other=0)

    # Z = k @ W + b ; g = lr * G, rounded as it will be cached
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    eta = learning_rate(rate, base_lr, D, LOGITS)
    wf = w.to(tl.float32)
    z = tl.sum(kf[:, None] * wf, 0) + bias
    zbar = tl.sum(qf[:, None] * to_float32_again(w), 0) + bias
    g = eta * ln_l2_grad(z, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    g = g.to(rows_g.dtype.element_ty).to(tl.float32)
    # Zbar = q @ W + b - s_i * sum_{j <= i} (q . k_j + 1) g_j
    weight = tl.sum(qf[None, :] * past_k.to(tl.float32), 1) + 1.0
    step = tl.sum(weight[:, None] * past_g.to(tl.float32), 0) + (tl.sum(qf * kf, 0) + 1.0) * g
    zbar -= scale * step
    xhat, _ = normalise(tl.where(valid, zbar, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.debug_barrier()  # every warp has read the position and the state
    row = pos * D + rd
    tl.store(rows_k + row, kf.to(rows_k.dtype.element_ty), mask=valid)
    tl.store(rows_g + row, g.to(rows_g.dtype.element_ty), mask=valid)
    if not SLOTS:
        tl.store(position + pid, tl.where(pos < m - 1, pos + 1, 0))
    if pos == m - 1:
        # The mini-batch is complete: W -= s K^T g, b -= s sum(g)
        tl.store(b + rd, bias - scale * (tl.sum(past_g.to(tl.float32), 0) + g), mask=valid)
        tl.debug_barrier()  # the row just written is read back below
        full = (rm[:, None] < m) & valid[None, :]
        all_g = tl.load(rows_g + rows_at, mask=full, other=0)
        for first in range(0, D, BLOCK):
            rb = first + tl.arange(0, BLOCK)
            inside = rb < D
            block_k = tl.load(
                rows_k + rm[None, :] * D + rb[:, None],
                mask=(rm[None, :] < m) & inside[:, None],
                other=0,
            )
            tile = rb[:, None] * D + rd[None, :]
            mask = inside[:, None] & valid[None, :]
            update = tl.dot(block_k.to(DOT), all_g.to(DOT), input_precision="ieee")
            x = load_weights(weights, low, tile, mask, PLANES) - scale * update
            store_weights(weights, low, tile, x, mask, PLANES)


@jit
def _primal(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope, weights, low, b, dW, db, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Run one token of one head of one sequence. The module's docstring defines the arguments."""
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd = tl.arange(0, DP)
    valid = rd < D
    pos = tl.load(position + pid)
    tile = pid * (D * D) + rd[:, None] * D + rd[None, :]
    mask = valid[:, None] & valid[None, :]
    w = tl.load(weights + tile, mask=mask, other=0)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias = tl.load(b + pid * D + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    # A new mini-batch ignores the stored sums, so no kernel clears them
    sum_W = tl.load(dW + tile, mask=mask & (pos > 0), other=0)
    sum_b = tl.load(db + pid * D + rd, mask=valid & (pos > 0), other=0)

    # Z = k @ W + b ; W_t = W - s (dW + lr K^T G)
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    eta = learning_rate(rate, base_lr, D, LOGITS)
    wf = w.to(tl.float32)
    z = tl.sum(kf[:, None] * wf, 0) + bias
    g = eta * ln_l2_grad(z, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    sum_W += kf[:, None] * g[None, :]
    sum_b += g
    zbar = tl.sum(qf[:, None] * (wf - scale * sum_W), 0) + bias - scale * sum_b
    xhat, _ = normalise(tl.where(valid, zbar, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.debug_barrier()  # every warp has read the position and the state
    if pos < m - 1:
        tl.store(position + pid, pos + 1)
        tl.store(dW + tile, sum_W, mask=mask)
        tl.store(db + pid * D + rd, sum_b, mask=valid)
    else:
        tl.store(position + pid, 0)
        tl.store(b + pid * D + rd, bias - scale * sum_b, mask=valid)
        x = load_weights(weights, low, tile, mask, PLANES) - scale * sum_W
        store_weights(weights, low, tile, x, mask, PLANES)
