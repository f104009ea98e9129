"""TTT-MLP generate in Triton for heads of more than 64 channels: dual form, blocks of hidden units.

`generate.py` holds W1 and W2 of a head in registers. This kernel reads them twice per token, in blocks of hidden units.
The first pass computes Z2; the second rereads the weights and computes G1 and the output.
"""

from __future__ import annotations

from tk_kernels.generate.common import (
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
)


@jit
def dual(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope,
    weights1, low1, b1, weights2, low2, b2, rows_k, rows_x2, rows_g1, rows_g2, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr,
    slots, w_stride, b1_stride, b2_stride, d_stride, f_stride,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, F: tl.constexpr, m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    """Run one token of one head of one sequence. `ttt_mlp.generate` defines the arguments."""
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd, rm, unit = tl.arange(0, DP), tl.arange(0, MP), tl.arange(0, BLOCK)
    valid = rd < D
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
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias2 = tl.load(b2 + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    at_d = rm[:, None] * D + rd[None, :]
    cached = (rm[:, None] < pos) & valid[None, :]
    past_k = tl.load(rows_k + at_d, mask=cached, other=0)
    past_g2 = tl.load(rows_g2 + at_d, mask=cached, other=0)
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    weight1 = -scale * (tl.sum(qf[None, :] * past_k.to(tl.float32), 1) + 1.0)
    own1 = -scale * (tl.sum(qf * kf, 0) + 1.0)
    eta = learning_rate(rate, base_lr, D, LOGITS)

    # Z2 = gelu(k @ W1 + b1) @ W2 + b2 ; G2
    z2 = tl.zeros((BLOCK, DP), tl.float32)
    for first in range(0, F, BLOCK):
        f = first + unit
        tile, mask = f[:, None] * D + rd[None, :], (f < F)[:, None] & valid[None, :]
        w1 = tl.load(weights1 + tile, mask=mask, other=0)
        w2 = tl.load(weights2 + tile, mask=mask, other=0)
        z1 = tl.sum(w1.to(tl.float32) * kf[None, :], 1) + tl.load(b1 + f, mask=f < F, other=0)
        z2 += gelu(z1)[:, None] * w2.to(tl.float32)
    z2 = tl.sum(z2, 0) + bias2
    grad2 = ln_l2_grad(z2, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    g2 = (eta * grad2).to(row_type)

    # G1 = (G2 @ W2^T) * gelu'(Z1) ; Z1bar = q @ W1 + b1 - s_i * sum_{j <= i} (q . k_j + 1) g1_j ; X2bar = gelu(Z1bar)
    zbar2 = tl.zeros((BLOCK, DP), tl.float32)
    weight2 = tl.zeros((MP, BLOCK), tl.float32)
    own2 = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, F, BLOCK):
        f = first + unit
        wide = f < F
        tile, mask = f[:, None] * D + rd[None, :], wide[:, None] & valid[None, :]
        w1 = tl.load(weights1 + tile, mask=mask, other=0)
        w2 = tl.load(weights2 + tile, mask=mask, other=0)
        bias1 = tl.load(b1 + f, mask=wide, other=0)
        at_f, earlier = rm[:, None] * F + f[None, :], (rm[:, None] < pos) & wide[None, :]
        past_g1 = tl.load(rows_g1 + at_f, mask=earlier, other=0)
        past_x2 = tl.load(rows_x2 + at_f, mask=earlier, other=0)
        z1 = tl.sum(w1.to(tl.float32) * kf[None, :], 1) + bias1
        zbar1 = tl.sum(to_float32_again(w1) * qf[None, :], 1) + bias1
        zbar1 += tl.sum(past_g1.to(tl.float32) * weight1[:, None], 0)
        x2 = gelu(z1).to(row_type)
        g1 = (eta * (tl.sum(w2.to(tl.float32) * grad2[None, :], 1) * gelu_grad(z1))).to(row_type)
        xbar2 = gelu(zbar1 + own1 * g1.to(tl.float32))
        zbar2 += xbar2[:, None] * to_float32_again(w2)
        weight2 += past_x2.to(tl.float32) * xbar2[None, :]
        own2 += xbar2 * x2.to(tl.float32)
        tl.store(rows_x2 + pos * F + f, x2, mask=wide)
        tl.store(rows_g1 + pos * F + f, g1, mask=wide)

    # Z2bar = X2bar @ W2 + b2 - s_i * sum_{j <= i} (X2bar . X2_j + 1) g2_j
    past = tl.sum((tl.sum(weight2, 1) + 1.0)[:, None] * past_g2.to(tl.float32), 0)
    zbar2 = tl.sum(zbar2, 0) + bias2 - scale * (past + (tl.sum(own2, 0) + 1.0) * g2.to(tl.float32))
    xhat, _ = normalise(tl.where(valid, zbar2, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.store(rows_k + pos * D + rd, kf.to(row_type), mask=valid)
    tl.store(rows_g2 + pos * D + rd, g2, mask=valid)
    tl.debug_barrier()  # all warps have read the position and the state
    if not SLOTS:
        tl.store(position + pid, tl.where(pos < m - 1, pos + 1, 0))
    if pos == m - 1:
        if PLANES:
            low1 += slot * w_stride + head * (D * F)
            low2 += slot * w_stride + head * (D * F)
        tl.debug_barrier()  # apply_rows reads the rows just written
        apply_rows(
            weights1, low1, b1, weights2, low2, b2, rows_k, rows_x2, rows_g1, rows_g2,
            scale, rd, rm, D, F, m, PLANES, BLOCK, DOT,
        )  # fmt: skip


@jit
def apply_rows(
    weights1, low1, b1, weights2, low2, b2, rows_k, rows_x2, rows_g1, rows_g2, scale, rd, rm,
    D: tl.constexpr, F: tl.constexpr, m: tl.constexpr,
    PLANES: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Apply a mini-batch's cached rows to one head, with s = `scale` = token_scale[m - 1].

    W1 -= s K^T g1, W2 -= s X2^T g2, b1 -= s sum(g1), b2 -= s sum(g2). rd, rm: padded indices along D and m.
    """
    valid = rd < D
    rows_d = rm[:, None] * D + rd[None, :]
    counted = (rm[:, None] < m) & valid[None, :]
    k = tl.load(rows_k + rows_d, mask=counted, other=0)
    g2 = tl.load(rows_g2 + rows_d, mask=counted, other=0)
    bias2 = tl.load(b2 + rd, mask=valid, other=0)
    tl.store(b2 + rd, bias2 - scale * tl.sum(g2.to(tl.float32), 0), mask=valid)
    for first in range(0, F, BLOCK):
        f = first + tl.arange(0, BLOCK)
        rows_f = rm[None, :] * F + f[:, None]
        whole = (rm[None, :] < m) & (f < F)[:, None]
        g1 = tl.load(rows_g1 + rows_f, mask=whole, other=0)
        x2 = tl.load(rows_x2 + rows_f, mask=whole, other=0)
        tile = f[:, None] * D + rd[None, :]
        mask = (f < F)[:, None] & valid[None, :]
        update = tl.dot(g1.to(DOT), k.to(DOT), input_precision="ieee")
        w = load_weights(weights1, low1, tile, mask, PLANES) - scale * update
        store_weights(weights1, low1, tile, w, mask, PLANES)
        update = tl.dot(x2.to(DOT), g2.to(DOT), input_precision="ieee")
        w = load_weights(weights2, low2, tile, mask, PLANES) - scale * update
        store_weights(weights2, low2, tile, w, mask, PLANES)
        bias1 = tl.load(b1 + f, mask=f < F, other=0)
        tl.store(b1 + f, bias1 - scale * tl.sum(g1.to(tl.float32), 1), mask=f < F)
