"""TTT-Linear forward in Triton: the dual form (ttt_layer.md), for GPUs from Ampere on.

One program of N warps owns one head of one sequence and loops over its mini-batches. W^T stays in registers as the
float32 accumulator of a batched matmul [N, D/N, D]. Each warp owns D/N rows of W^T, so W^T never moves between warps.
In Z = K W + b and Y = Q W + b, W is a matmul operand, rounded to DOT.
Tokens past the end of a short mini-batch are masked and have lr = 0.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from tk_kernels.forward import common
from tk_kernels.forward.common import (
    add_six,
    add_two,
    forward_constants,
    gradient_coefficients,
    keys_at,
    normalization,
    packed_sequence,
    sm_count,
    sums_of_six,
)
from tk_kernels.generate.common import jit, load_weights, section_name, store_weights, tl
from tk_kernels.generate.tuning import FORWARD, Tuning, tuning

CROWDED = 3  # programs per SM from which two warps per program are faster than four, on an H200


def run(
    q: Tensor,
    k: Tensor,
    rest: tuple[Any, ...],
    mini_batch: int,
    sequences: int,
    settings: Tuning | None,
    **options: Any,
) -> None:
    heads, head_dim = q.shape[-2:]
    if head_dim > 64 or mini_batch > 16:
        row = "wide"
    else:
        row = "crowded" if q.is_cuda and sequences * heads >= CROWDED * sm_count(q) else "few"
    settings = settings or tuning("ttt_linear", FORWARD, row, section_name(False, q.device))
    options |= {"N": settings.warps, "num_warps": settings.warps, "grid": (sequences * heads,)}
    _forward.run(q, q, k, *rest, **forward_constants(q, mini_batch, settings.stages), **options)


@jit
def _forward(
    q, q_again, k, v, lr, token_scale, ln_weight, ln_bias, W, b, out, W_out, b_out, k_rows, g_rows,
    T, H, q_batch, q_token, q_head, k_batch, k_token, k_head, v_batch, v_token, v_head,
    m: tl.constexpr, M: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr, GRAD_SCALE: tl.constexpr,
    N: tl.constexpr, S: tl.constexpr,
    cu_seqlens=None, start=None, slots=None, low=None, W_first=None, b_first=None, w_stride=0, b_stride=0,
    row_stride=0, PACKED: tl.constexpr = False, PLANES: tl.constexpr = False,
):  # fmt: skip
    """Run one head of one sequence. The grid is B * H programs of N warps.

    q, k, v [B, T, H, D]: stride 1 over D. q_again: q, because Triton 3.8 would not swizzle one copy for two matmuls.
    q_batch, q_token, q_head: strides of q over B, T and H; likewise for k and v.
    Other tensors are contiguous: lr [B, T, H], token_scale [m], ln_weight, ln_bias [H, D], and out [B, T, H, D].
    W [B, H, D, D], b [B, H, D]: weights before the tokens. W_out, b_out: weights after them, to write.
    k_rows, g_rows [B, H, m, D]: to write, the last mini-batch's keys and lr * the loss's gradient at K W + b.
    m: tokens per mini-batch. M, DP: m and D padded to powers of two. S: pipeline stages of the loads.
    DOT: dtype of matmul operands. GRAD_SCALE: factor on gradients and weights in registers, 1024 for float16.
    PACKED: q, k, v, out are [tokens, H, D], lr is [tokens, H]. cu_seqlens, start, slots: fields of `Packed`.
        W, W_out, b, b_out, k_rows, g_rows: a generate state's tensors, read and updated.
        w_stride, b_stride, row_stride: strides over slots of W and `low`, of b, and of the rows.
        W_first [H, D, D], b_first [H, D]: weights of a sequence whose start is 0.
    PLANES: W and W_out are the bfloat16 high plane of float32 weights, and `low` is their int16 low plane.
    """
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    begin = 0  # position of token 0 in its mini-batch
    if PACKED:
        first_token, T, before, begin, slot = packed_sequence(cu_seqlens, start, slots, seq, m)
        if T == 0:
            return
        W += slot * w_stride + head * (D * D)
        W_out += slot * w_stride + head * (D * D)
        if PLANES:
            low += slot * w_stride + head * (D * D)
        b += slot * b_stride + head * D
        b_out += slot * b_stride + head * D
        k_rows += slot * row_stride + head * (m * D)
        g_rows += slot * row_stride + head * (m * D)
        q += first_token * q_token
        q_again += first_token * q_token
        k += first_token * k_token
        v += first_token * v_token
        out += first_token * (H * D)
        lr += first_token * H
        seq, pid = 0, 0  # the pointers above include their offsets
    d, i = tl.arange(0, DP), tl.arange(0, M)
    o = tl.arange(0, N)[:, None] * (DP // N) + tl.arange(0, DP // N)[None, :]  # [N, outputs of a warp]
    inside, row = d < D, i < m
    at = pid * (D * D) + d[None, None, :] * D + o[:, :, None]
    whole = inside[None, None, :] & (o < D)[:, :, None]
    if PACKED:
        if before == 0:
            Wt = tl.load(W_first + head * (D * D) + at, mask=whole, other=0) * GRAD_SCALE
            bias = tl.load(b_first + head * D + o, mask=o < D, other=0)
        else:
            Wt = load_weights(W, low, at, whole, PLANES) * GRAD_SCALE
            bias = tl.load(b + o, mask=o < D, other=0)
    else:
        Wt = tl.load(W + at, mask=whole, other=0) * GRAD_SCALE  # [N, outputs, inputs]
        bias = tl.load(b + pid * D + o, mask=o < D, other=0)
    gamma = tl.load(ln_weight + head * D + o, mask=o < D, other=0)[:, None, :]
    beta = tl.load(ln_bias + head * D + o, mask=o < D, other=0)[:, None, :]
    gamma_squared = gamma * gamma
    gamma_squared_sum = tl.sum(gamma_squared)
    scale = tl.load(token_scale + i, mask=row, other=0)
    last = tl.load(token_scale + m - 1)
    triangle = tl.where(i[:, None] >= i[None, :], -scale[:, None] / GRAD_SCALE, 0.0)[None]
    q += seq * q_batch + head * q_head
    q_again += seq * q_batch + head * q_head
    k += seq * k_batch + head * k_head
    v += seq * v_batch + head * v_head
    out += seq * T * (H * D) + head * D
    lr += seq * T * H + head

    for t in tl.range(-begin, T, m, num_stages=S):
        token = t + i
        known = row & (token < T)  # rows that have a key; earlier tokens are negative, see `keys_at`
        valid = known
        if PACKED:
            valid &= token >= 0
        mask = valid[None, :, None] & inside[None, None, :]  # for [1, m, inputs]
        mask_k = known[None, :, None] & inside[None, None, :]
        part = valid[None, :, None] & (o < D)[:, None, :]  # mask for [N, m, outputs]
        part_k = known[None, :, None] & (o < D)[:, None, :]
        token = token.to(tl.int64)
        at_q = token[None, :, None] * q_token + d[None, None, :]
        Q = tl.load(q + at_q, mask=mask, other=0)
        Q_again = tl.load(q_again + at_q, mask=mask, other=0)
        keys = keys_at(k, k_rows, token[None, :, None], begin, k_token, d[None, None, :], D, PACKED)
        K = tl.load(keys, mask=mask_k, other=0)
        V_part = tl.load(v + token[None, :, None] * v_token + o[:, None, :], mask=part, other=0).to(tl.float32)
        keys_part = keys_at(k, k_rows, token[None, :, None], begin, k_token, o[:, None, :], D, PACKED)
        K_part = tl.load(keys_part, mask=part_k, other=0).to(tl.float32)
        Q_part = tl.load(q + token[None, :, None] * q_token + o[:, None, :], mask=part, other=0).to(tl.float32)
        rate = tl.load(lr + token * H, mask=valid, other=0)
        Q = tl.broadcast_to(Q.to(DOT), (N, M, DP))
        Q_again = tl.broadcast_to(Q_again.to(DOT), (N, M, DP))
        K = tl.broadcast_to(K.to(DOT), (N, M, DP))

        # Z = K W + b, Y = Q W + b, P = -tril(s (Q K^T + 1))
        weights = tl.trans((Wt * (1.0 / GRAD_SCALE)).to(DOT), 0, 2, 1)
        Z = tl.dot(K, weights, input_precision="ieee") + bias[:, None, :]
        Y = tl.dot(Q, weights, input_precision="ieee") + bias[:, None, :]
        P = (tl.dot(Q_again, tl.trans(K, 0, 2, 1), input_precision="ieee") + 1.0) * triangle

        # G = lr * ln_l2_grad(Z, V - K)
        offset = gamma * (beta - V_part + K_part)
        u = gamma_squared * Z
        s0, s1, s2, s3, s4, s5 = tl.reduce((Z, Z * Z, u, u * Z, offset * Z, offset), 2, add_six)
        s0, s1, s2, s3, s4, s5 = sums_of_six(s0, s1, s2, s3, s4, s5)
        mean, rstd, mean_g, mean_gx = gradient_coefficients(s0, s1, s2, s3, s4, s5, gamma_squared_sum, D)
        slope = gamma_squared * rstd[None, :, None] - mean_gx[None, :, None]
        G = (Z - mean[None, :, None]) * slope + offset - mean_g[None, :, None]
        G *= (rstd * rate)[None, :, None] * GRAD_SCALE
        if DP != D:
            G = tl.where((o < D)[:, None, :], G, 0.0)
        if PACKED:
            past = part_k & (token < 0)[None, :, None]
            if t < 0:
                at_rows = i[None, :, None] * D + o[:, None, :]
                G = tl.where(past, tl.load(g_rows + at_rows, mask=past, other=0).to(tl.float32) * GRAD_SCALE, G)

        # Zbar = Y + P G; W^T += (-s_last G)^T K, unless the mini-batch is short
        Y = tl.dot(P.to(DOT), G.to(DOT), Y, input_precision="ieee")
        step = tl.where(t + m <= T, -last, 0.0)
        Wt = tl.dot(tl.trans((G * step).to(DOT), 0, 2, 1), K, Wt, input_precision="ieee")
        bias += tl.sum(G, 1) * (step * (1.0 / GRAD_SCALE))

        # out = Q + LN(Zbar)
        s0, s1 = tl.reduce((Y, Y * Y), 2, add_two)
        s0, s1 = tl.split(tl.sum(tl.join(s0, s1), 0))
        mean, rstd = normalization(s0, s1, D)
        x = Q_part + gamma * (Y - mean[None, :, None]) * rstd[None, :, None] + beta
        tl.store(out + token[None, :, None] * (H * D) + o[:, None, :], x.to(out.dtype.element_ty), mask=part)
        if t + m >= T:  # store the last mini-batch's rows; rows past T are 0
            row_mask = row[None, :, None] & (o < D)[:, None, :]
            rows = pid * (m * D) + i[None, :, None] * D + o[:, None, :]
            K_last = tl.load(keys_part, mask=part_k, other=0)  # again: K_part would occupy registers in the loop
            tl.store(k_rows + rows, K_last.to(tl.float32), mask=row_mask)
            tl.store(g_rows + rows, G * (1.0 / GRAD_SCALE), mask=row_mask)

    tl.debug_barrier()  # W_out and b_out may be W and b
    if PACKED:
        store_weights(W_out, low, at, Wt * (1.0 / GRAD_SCALE), whole, PLANES)
    else:
        tl.store(W_out + at, Wt * (1.0 / GRAD_SCALE), mask=whole)
    tl.store(b_out + pid * D + o, bias, mask=o < D)


launch, launch_packed = partial(common.launch, run), partial(common.launch_packed, run, _forward)
