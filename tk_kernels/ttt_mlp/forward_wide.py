"""TTT-MLP dual-form forward in Triton, for heads or mini-batches too large for registers.

One program owns one head of one sequence and loops over its mini-batches. W1 and W2 stay in the output tensors, read
through the L2 cache. Each mini-batch takes two passes over blocks of hidden units. The first pass computes Z2. The
second recomputes Z1 and X2, computes the output and updates the weights.
"""

from __future__ import annotations

from tk_kernels.forward.common import (
    add_six,
    add_two,
    gelu_slope,
    gelu_tanh,
    gradient_coefficients,
    keys_at,
    normalization,
    packed_sequence,
)
from tk_kernels.generate.common import jit, load_weights, store_weights, tl


@jit
def forward(
    q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2, out, W1_out, b1_out, W2_out, b2_out,
    k_rows, x2_rows, g1_rows, g2_rows, T, H, q_batch, q_token, q_head, k_batch, k_token, k_head,
    v_batch, v_token, v_head, m: tl.constexpr, M: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr,
    GRAD_SCALE: tl.constexpr, F: tl.constexpr, BLOCK: tl.constexpr, S: tl.constexpr,
    cu_seqlens=None, start=None, slots=None, low1=None, low2=None,
    W1_first=None, b1_first=None, W2_first=None, b2_first=None,
    w_stride=0, b1_stride=0, b2_stride=0, d_stride=0, f_stride=0,
    PACKED: tl.constexpr = False, PLANES: tl.constexpr = False,
):  # fmt: skip
    """Run one head of one sequence. `ttt_mlp.forward` defines the arguments except BLOCK and S.

    BLOCK: hidden units per block, divides F. S: pipeline stages of the loads of W1 and W2.
    """
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    d, i, unit = tl.arange(0, DP), tl.arange(0, M), tl.arange(0, BLOCK)
    inside, row = d < D, i < m
    begin = 0  # position of token 0 in its mini-batch
    if PACKED:
        first_token, T, before, begin, slot = packed_sequence(cu_seqlens, start, slots, seq, m)
        if T == 0:
            return
        at_slot = slot * w_stride + head * (D * F)
        W1_out += at_slot
        W2_out += at_slot
        if PLANES:
            low1 += at_slot
            low2 += at_slot
        b1_out += slot * b1_stride + head * F
        b2_out += slot * b2_stride + head * D
        k_rows += slot * d_stride + head * (m * D)
        g2_rows += slot * d_stride + head * (m * D)
        x2_rows += slot * f_stride + head * (m * F)
        g1_rows += slot * f_stride + head * (m * F)
        W1_first += head * (D * F)
        W2_first += head * (D * F)
        if before == 0:
            for first in range(0, F, BLOCK):
                f = first + unit
                w1 = tl.load(W1_first + d[:, None] * F + f[None, :], mask=inside[:, None], other=0)
                w2 = tl.load(W2_first + f[:, None] * D + d[None, :], mask=inside[None, :], other=0)
                store_weights(W1_out, low1, d[:, None] + f[None, :] * D, w1, inside[:, None], PLANES)
                store_weights(W2_out, low2, f[:, None] * D + d[None, :], w2, inside[None, :], PLANES)
                tl.store(b1_out + f, tl.load(b1_first + head * F + f))
            bias2 = tl.load(b2_first + head * D + d, mask=inside, other=0)
        else:
            bias2 = tl.load(b2_out + d, mask=inside, other=0)
        q += first_token * q_token
        k += first_token * k_token
        v += first_token * v_token
        out += first_token * (H * D)
        lr += first_token * H
        seq, pid = 0, 0  # the pointers above include their offsets
    else:
        W1 += pid * (D * F)
        W2 += pid * (D * F)
        b1 += pid * F
        W1_out += pid * (D * F)
        W2_out += pid * (D * F)
        b1_out += pid * F
        for first in range(0, F, BLOCK):
            f = first + unit
            at1, at2 = d[:, None] * F + f[None, :], f[:, None] * D + d[None, :]
            tl.store(W1_out + at1, tl.load(W1 + at1, mask=inside[:, None]), mask=inside[:, None])
            tl.store(W2_out + at2, tl.load(W2 + at2, mask=inside[None, :]), mask=inside[None, :])
            tl.store(b1_out + f, tl.load(b1 + f))
        bias2 = tl.load(b2 + pid * D + d, mask=inside, other=0)
    gamma = tl.load(ln_weight + head * D + d, mask=inside, other=0)[None, :]
    beta = tl.load(ln_bias + head * D + d, mask=inside, other=0)[None, :]
    gamma_squared = gamma * gamma
    gamma_squared_sum = tl.sum(gamma_squared)
    scale = tl.load(token_scale + i, mask=row, other=0)
    last = tl.load(token_scale + m - 1)
    triangle = tl.where(i[:, None] >= i[None, :], -scale[:, None] / GRAD_SCALE, 0.0)
    q += seq * q_batch + head * q_head
    k += seq * k_batch + head * k_head
    v += seq * v_batch + head * v_head
    out += seq * T * (H * D) + head * D
    lr += seq * T * H + head

    for t in tl.range(-begin, T, m, num_stages=1):
        token = t + i
        known = row & (token < T)  # rows that have a key; earlier tokens are negative, see `keys_at`
        valid = known
        if PACKED:
            valid &= token >= 0
        mask = valid[:, None] & inside[None, :]
        mask_k = known[:, None] & inside[None, :]
        token = token.to(tl.int64)
        Q = tl.load(q + token[:, None] * q_token + d[None, :], mask=mask, other=0).to(DOT)
        keys = keys_at(k, k_rows, token[:, None], begin, k_token, d[None, :], D, PACKED)
        K = tl.load(keys, mask=mask_k, other=0).to(DOT)
        V = tl.load(v + token[:, None] * v_token + d[None, :], mask=mask, other=0)
        rate = tl.load(lr + token * H, mask=valid, other=0)
        P1 = ((tl.dot(Q, tl.trans(K), input_precision="ieee") + 1.0) * triangle).to(DOT)
        tl.debug_barrier()  # the previous mini-batch's update is visible to all warps

        # Z2 = gelu(K W1 + b1) W2 + b2
        Z2 = tl.zeros((M, DP), tl.float32)
        for first in tl.range(0, F, BLOCK, num_stages=S):
            f = first + unit
            if PACKED:  # W1^T; with PLANES, the high plane is the rounded weight
                w1 = tl.trans(tl.load(W1_out + f[:, None] * D + d[None, :], mask=inside[None, :], other=0).to(DOT))
            else:
                w1 = tl.load(W1_out + d[:, None] * F + f[None, :], mask=inside[:, None], other=0).to(DOT)
            w2 = tl.load(W2_out + f[:, None] * D + d[None, :], mask=inside[None, :], other=0).to(DOT)
            X2, _ = gelu_tanh(tl.dot(K, w1, input_precision="ieee") + tl.load(b1_out + f)[None, :])
            Z2 = tl.dot(X2.to(DOT), w2, Z2, input_precision="ieee")
        Z2 += bias2[None, :]

        # G2 = lr * ln_l2_grad(Z2, V - K)
        offset = gamma * (beta - V.to(tl.float32) + K.to(tl.float32))
        u = gamma_squared * Z2
        s0, s1, s2, s3, s4, s5 = tl.reduce((Z2, Z2 * Z2, u, u * Z2, offset * Z2, offset), 1, add_six)
        mean, rstd, mean_g, mean_gx = gradient_coefficients(s0, s1, s2, s3, s4, s5, gamma_squared_sum, D)
        G2 = (Z2 - mean[:, None]) * (gamma_squared * rstd[:, None] - mean_gx[:, None]) + offset - mean_g[:, None]
        G2 *= (rstd * rate)[:, None] * GRAD_SCALE
        if DP != D:
            G2 = tl.where(inside[None, :], G2, 0.0)
        if PACKED:
            past = mask_k & (token < 0)[:, None]
            if t < 0:  # earlier tokens: load G2, from which G1 follows below
                at_rows = i[:, None] * D + d[None, :]
                G2 = tl.where(past, tl.load(g2_rows + at_rows, mask=past, other=0).to(tl.float32) * GRAD_SCALE, G2)
        g2 = G2.to(DOT)
        step = tl.where(t + m <= T, -last / GRAD_SCALE, 0.0)  # an incomplete mini-batch does not change the weights
        ends = t + m >= T
        tl.debug_barrier()  # all warps have finished the first pass

        # G1 = (G2 W2^T) * gelu'(Z1), Z1bar = Q W1 + b1 + P1 G1, Z2bar = gelu(Z1bar) W2 + b2 + P2 G2; update W1, W2
        Z2bar = tl.zeros((M, DP), tl.float32)
        P2 = tl.zeros((M, M), tl.float32)
        for first in tl.range(0, F, BLOCK, num_stages=S):
            f = first + unit
            if PACKED:
                at2 = f[:, None] * D + d[None, :]
                V1 = load_weights(W1_out, low1, at2, inside[None, :], PLANES)  # W1^T
                V2 = load_weights(W2_out, low2, at2, inside[None, :], PLANES)
            else:
                at1, at2 = W1_out + d[:, None] * F + f[None, :], W2_out + f[:, None] * D + d[None, :]
                V1 = tl.load(at1, mask=inside[:, None], other=0)
                V2 = tl.load(at2, mask=inside[None, :], other=0)
            bias1 = tl.load(b1_out + f)
            w1, w2 = V1.to(DOT), V2.to(DOT)
            if PACKED:
                w1 = tl.trans(w1)
            Z1 = tl.dot(K, w1, input_precision="ieee") + bias1[None, :]
            Y1 = tl.dot(Q, w1, input_precision="ieee") + bias1[None, :]
            X2, th = gelu_tanh(Z1)
            x2 = X2.to(DOT)
            G1 = tl.dot(g2, tl.trans(w2), input_precision="ieee") * gelu_slope(Z1, th)
            g1 = G1.to(DOT)
            X2bar, _ = gelu_tanh(tl.dot(P1, g1, Y1, input_precision="ieee"))
            x2bar = X2bar.to(DOT)
            P2 = tl.dot(x2bar, tl.trans(x2), P2, input_precision="ieee")
            Z2bar = tl.dot(x2bar, w2, Z2bar, input_precision="ieee")
            if PACKED:
                V1 += step * tl.dot(tl.trans(g1), K, input_precision="ieee")
            else:
                V1 += step * tl.dot(tl.trans(K), g1, input_precision="ieee")
            V2 += step * tl.dot(tl.trans(x2), g2, input_precision="ieee")
            if PACKED:
                store_weights(W1_out, low1, at2, V1, inside[None, :], PLANES)
                store_weights(W2_out, low2, at2, V2, inside[None, :], PLANES)
            else:
                tl.store(at1, V1, mask=inside[:, None])
                tl.store(at2, V2, mask=inside[None, :])
            tl.store(b1_out + f, bias1 + step * tl.sum(G1, 0))
            if ends:  # store the pending rows; rows past T are 0, except in X2
                wide = pid * (m * F) + i[:, None] * F + f[None, :]
                tl.store(x2_rows + wide, X2, mask=row[:, None])
                tl.store(g1_rows + wide, G1 * (1.0 / GRAD_SCALE), mask=row[:, None])
        P2 = ((P2 + 1.0) * triangle).to(DOT)
        Z2bar = tl.dot(P2, g2, Z2bar, input_precision="ieee") + bias2[None, :]
        bias2 += step * tl.sum(G2, 0)

        s0, s1 = tl.reduce((Z2bar, Z2bar * Z2bar), 1, add_two)
        mean, rstd = normalization(s0, s1, D)
        x = Q.to(tl.float32) + gamma * (Z2bar - mean[:, None]) * rstd[:, None] + beta
        tl.store(out + token[:, None] * (H * D) + d[None, :], x.to(out.dtype.element_ty), mask=mask)
        if ends:
            rows = pid * (m * D) + i[:, None] * D + d[None, :]
            row_mask = row[:, None] & inside[None, :]
            tl.store(k_rows + rows, K.to(tl.float32), mask=row_mask)
            tl.store(g2_rows + rows, G2 * (1.0 / GRAD_SCALE), mask=row_mask)
    tl.store(b2_out + pid * D + d, bias2, mask=inside)
