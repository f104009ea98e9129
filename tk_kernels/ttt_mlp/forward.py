"""TTT-MLP forward in Triton: the dual form (ttt_layer.md), for GPUs from Ampere on.

One program of N warps owns one head of one sequence and loops over its mini-batches. W1^T and W2 stay in registers as
float32 accumulators of batched matmuls [N, F/N, D]. Each warp owns F/N hidden units, so K W1, Q W1 and both updates
stay in a warp. Once per mini-batch, W2 is rounded and written to shared memory, where three matmuls read all of it.

Arguments of all forward kernels for TTT-MLP; the grid is B * H programs:
q, k, v [B, T, H, D]: stride 1 over D. q_batch, q_token, q_head: strides of q over B, T and H; likewise for k and v.
Other tensors are contiguous: lr [B, T, H], token_scale [m], ln_weight, ln_bias [H, D], and out [B, T, H, D].
W1 [B, H, D, F], b1 [B, H, F], W2 [B, H, F, D], b2 [B, H, D]: weights before the tokens.
W1_out, b1_out, W2_out, b2_out: weights after the tokens, to write.
k_rows [B, H, m, D], x2_rows [B, H, m, F]: to write, the layers' inputs for the last mini-batch's tokens.
g1_rows [B, H, m, F], g2_rows [B, H, m, D]: to write, lr times the loss's gradient at the layers' outputs.
m: tokens per mini-batch. M, DP: m and D padded to powers of two. S: pipeline stages of the loads.
DOT: dtype of matmul operands. GRAD_SCALE: factor on gradients and weights in registers, 1024 for float16.
PACKED: q, k, v, out are [tokens, H, D], lr is [tokens, H]. cu_seqlens, start, slots: fields of `Packed`.
    Weights, biases and rows are a generate state's tensors, read and updated, with W1^T instead of W1.
    Strides over slots: w_stride of weights and low planes, b1_stride and b2_stride of biases,
    d_stride of k_rows and g2_rows, f_stride of x2_rows and g1_rows.
    W1_first [H, D, F], b1_first, W2_first, b2_first: weights of a sequence whose start is 0.
PLANES: the state's weights are bfloat16 high planes; low1, low2 are the int16 low planes of W1^T and W2.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tk_kernels.edges.few_rows import shared_bytes
from tk_kernels.forward import common
from tk_kernels.forward.common import (
    add_six,
    add_two,
    forward_constants,
    gelu_slope,
    gelu_tanh,
    gradient_coefficients,
    keys_at,
    normalization,
    packed_sequence,
)
from tk_kernels.generate.common import jit, load_weights, section_name, store_weights, tl, triton
from tk_kernels.generate.tuning import FORWARD, Tuning, tuning
from tk_kernels.ttt_mlp import forward_gluon, forward_wide

# Requirements of `forward_gluon`: head dimension, most tokens per mini-batch, least shared memory per block
GLUON_HEAD_DIM, GLUON_MINI_BATCH, GLUON_SHARED_BYTES = 64, 16, 137_216
# Largest head dimension and mini-batch for which `_forward` spills few registers
MAX_HEAD_DIM_IN_REGISTERS, MAX_MINI_BATCH_IN_REGISTERS = 64, 32


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
    hidden = 4 * head_dim
    row = "narrow" if head_dim <= MAX_HEAD_DIM_IN_REGISTERS and mini_batch <= MAX_MINI_BATCH_IN_REGISTERS else "wide"
    options["grid"] = (sequences * heads,)
    if settings is None and takes_gluon(q, mini_batch):
        forward_gluon.forward.run(q, k, *rest, m=mini_batch, num_warps=forward_gluon.WARPS, **options)
        return
    settings = settings or tuning("ttt_mlp", FORWARD, row, section_name(False, q.device))
    options |= forward_constants(q, mini_batch, settings.stages) | {"F": hidden, "num_warps": settings.warps}
    if row == "narrow":
        _forward.run(q, k, k, k, *rest, N=settings.warps, **options)
    elif hidden % settings.block:
        raise ValueError(f"block {settings.block}: must divide {hidden} hidden units")
    else:
        forward_wide.forward.run(q, k, *rest, BLOCK=settings.block, **options)


def takes_gluon(q: Tensor, mini_batch: int) -> bool:
    """Whether the Gluon kernel, which takes only bfloat16, runs on q [..., H, D]."""
    fits = (q.shape[-1], q.dtype) == (GLUON_HEAD_DIM, torch.bfloat16) and mini_batch <= GLUON_MINI_BATCH
    runs = q.is_cuda and not triton.knobs.runtime.interpret
    return fits and runs and shared_bytes(q.device) >= GLUON_SHARED_BYTES


@jit
def _forward(
    q, k, k_again, k_third, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2, out, W1_out, b1_out, W2_out,
    b2_out, k_rows, x2_rows, g1_rows, g2_rows, T, H, q_batch, q_token, q_head, k_batch, k_token, k_head,
    v_batch, v_token, v_head, m: tl.constexpr, M: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, DOT: tl.constexpr,
    GRAD_SCALE: tl.constexpr, F: tl.constexpr, N: tl.constexpr, S: tl.constexpr,
    cu_seqlens=None, start=None, slots=None, low1=None, low2=None,
    W1_first=None, b1_first=None, W2_first=None, b2_first=None,
    w_stride=0, b1_stride=0, b2_stride=0, d_stride=0, f_stride=0,
    PACKED: tl.constexpr = False, PLANES: tl.constexpr = False,
):  # fmt: skip
    """Run one head of one sequence. The module's docstring defines the arguments."""
    # k, k_again and k_third are one tensor, loaded once for each layout in shared memory that a matmul needs.
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    begin = 0  # position of token 0 in its mini-batch
    if PACKED:
        first_token, T, before, begin, slot = packed_sequence(cu_seqlens, start, slots, seq, m)
        if T == 0:
            return
        at_slot = slot * w_stride + head * (D * F)
        W1 += at_slot
        W2 += at_slot
        if PLANES:
            low1 += at_slot
            low2 += at_slot
        b1 += slot * b1_stride + head * F
        b2 += slot * b2_stride + head * D
        k_rows += slot * d_stride + head * (m * D)
        g2_rows += slot * d_stride + head * (m * D)
        x2_rows += slot * f_stride + head * (m * F)
        g1_rows += slot * f_stride + head * (m * F)
        q += first_token * q_token
        k += first_token * k_token
        k_again += first_token * k_token
        k_third += first_token * k_token
        v += first_token * v_token
        out += first_token * (H * D)
        lr += first_token * H
        seq, pid = 0, 0  # the pointers above include their offsets
    d, i = tl.arange(0, DP), tl.arange(0, M)
    f = tl.arange(0, N)[:, None] * (F // N) + tl.arange(0, F // N)[None, :]  # [N, hidden units of a warp]
    inside, row = d < D, i < m
    at1 = pid * (D * F) + d[None, None, :] * F + f[:, :, None]
    at2 = pid * (D * F) + f[:, :, None] * D + d[None, None, :]
    whole = (f >= 0)[:, :, None] & inside[None, None, :]
    if PACKED:  # the slots hold W1^T
        if before == 0:
            V1 = tl.load(W1_first + head * (D * F) + at1, mask=whole, other=0) * GRAD_SCALE
            V2 = tl.load(W2_first + head * (D * F) + at2, mask=whole, other=0) * GRAD_SCALE
            bias1 = tl.load(b1_first + head * F + f)
            bias2 = tl.load(b2_first + head * D + d, mask=inside, other=0)
        else:
            V1 = load_weights(W1, low1, at2, whole, PLANES) * GRAD_SCALE
            V2 = load_weights(W2, low2, at2, whole, PLANES) * GRAD_SCALE
            bias1 = tl.load(b1 + f)
            bias2 = tl.load(b2 + d, mask=inside, other=0)
    else:
        V1 = tl.load(W1 + at1, mask=whole, other=0) * GRAD_SCALE  # W1^T: [N, units, D]
        V2 = tl.load(W2 + at2, mask=whole, other=0) * GRAD_SCALE  # W2: [N, units, D]
        bias1 = tl.load(b1 + pid * F + f)
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
    k_again += seq * k_batch + head * k_head
    k_third += seq * k_batch + head * k_head
    v += seq * v_batch + head * v_head
    out += seq * T * (H * D) + head * D
    lr += seq * T * H + head

    for t in tl.range(-begin, T, m, num_stages=S):
        token = t + i
        known = row & (token < T)  # rows that have a key; earlier tokens are negative, see `keys_at`
        valid = known
        if PACKED:
            valid &= token >= 0
        mask = valid[:, None] & inside[None, :]
        mask_k = known[:, None] & inside[None, :]
        token = token.to(tl.int64)
        Q = tl.load(q + token[:, None] * q_token + d[None, :], mask=mask, other=0)
        keys = keys_at(k, k_rows, token[:, None], begin, k_token, d[None, :], D, PACKED)
        keys_again = keys_at(k_again, k_rows, token[:, None], begin, k_token, d[None, :], D, PACKED)
        keys_third = keys_at(k_third, k_rows, token[:, None], begin, k_token, d[None, :], D, PACKED)
        K = tl.load(keys, mask=mask_k, other=0)
        K_again = tl.load(keys_again, mask=mask_k, other=0)
        K_third = tl.load(keys_third, mask=mask_k, other=0)
        V = tl.load(v + token[:, None] * v_token + d[None, :], mask=mask, other=0)
        rate = tl.load(lr + token * H, mask=valid, other=0)
        Qn = tl.broadcast_to(Q.to(DOT)[None], (N, M, DP))
        Kn = tl.broadcast_to(K.to(DOT)[None], (N, M, DP))
        Kt = tl.trans(tl.broadcast_to(K_again.to(DOT)[None], (N, M, DP)), 0, 2, 1)
        Ku = tl.broadcast_to(K_third.to(DOT)[None], (N, M, DP))

        # Z1 = K W1 + b1, Y1 = Q W1 + b1, P1 = -tril(s (Q K^T + 1)), X2 = gelu(Z1)
        weights1 = tl.trans((V1 * (1.0 / GRAD_SCALE)).to(DOT), 0, 2, 1)
        Z1 = tl.dot(Kn, weights1, input_precision="ieee") + bias1[:, None, :]
        Y1 = tl.dot(Qn, weights1, input_precision="ieee") + bias1[:, None, :]
        P1 = (tl.dot(Qn, Kt, input_precision="ieee") + 1.0) * triangle[None]
        X2, th = gelu_tanh(Z1)
        slope = gelu_slope(Z1, th)

        # Z2 = X2 W2 + b2, G2 = lr * ln_l2_grad(Z2, V - K)
        weights2 = tl.reshape((V2 * (1.0 / GRAD_SCALE)).to(DOT), (F, DP))
        X2_low = X2.to(DOT)
        x2 = tl.reshape(tl.trans(X2_low, 1, 0, 2), (M, F))
        Z2 = tl.dot(x2, weights2, input_precision="ieee") + bias2[None, :]
        offset = gamma * (beta - V.to(tl.float32) + K_again.to(tl.float32))
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

        # G1 = (G2 W2^T) * gelu'(Z1), Z1bar = Y1 + P1 G1
        g2 = G2.to(DOT)
        G1 = tl.dot(g2, tl.trans(weights2), input_precision="ieee")
        G1 = tl.trans(tl.reshape(G1, (M, N, F // N)), 1, 0, 2) * slope
        Y1 = tl.dot(P1.to(DOT), G1.to(DOT), Y1, input_precision="ieee")
        X2bar, _ = gelu_tanh(Y1)

        # Z2bar = X2bar W2 + b2 - tril(s (X2bar X2^T + 1)) G2, out = Q + LN(Z2bar)
        X2bar_low = X2bar.to(DOT)
        x2bar = tl.reshape(tl.trans(X2bar_low, 1, 0, 2), (M, F))
        P2 = tl.sum(tl.dot(X2bar_low, tl.trans(X2_low, 0, 2, 1), input_precision="ieee"), 0)
        P2 = (P2 + 1.0) * triangle
        Z2bar = tl.dot(x2bar, weights2, input_precision="ieee") + bias2[None, :]
        Z2bar = tl.dot(P2.to(DOT), g2, Z2bar, input_precision="ieee")

        # Update W1, W2 and the biases, unless the mini-batch is short
        step = tl.where(t + m <= T, -last, 0.0)
        G2_step = tl.broadcast_to((G2 * step).to(DOT)[None], (N, M, DP))
        V2 = tl.dot(tl.trans(X2_low, 0, 2, 1), G2_step, V2, input_precision="ieee")
        V1 = tl.dot(tl.trans((G1 * step).to(DOT), 0, 2, 1), Ku, V1, input_precision="ieee")
        bias1 += tl.sum(G1, 1) * (step * (1.0 / GRAD_SCALE))
        bias2 += tl.sum(G2, 0) * (step * (1.0 / GRAD_SCALE))

        s0, s1 = tl.reduce((Z2bar, Z2bar * Z2bar), 1, add_two)
        mean, rstd = normalization(s0, s1, D)
        x = Q.to(tl.float32) + gamma * (Z2bar - mean[:, None]) * rstd[:, None] + beta
        tl.store(out + token[:, None] * (H * D) + d[None, :], x.to(out.dtype.element_ty), mask=mask)
        if t + m >= T:  # store the last mini-batch's rows; rows past T are 0, except in X2
            rows = pid * (m * D) + i[:, None] * D + d[None, :]
            wide = pid * (m * F) + i[None, :, None] * F + f[:, None, :]
            row_mask, wide_mask = row[:, None] & inside[None, :], row[None, :, None] & (f >= 0)[:, None, :]
            tl.store(k_rows + rows, K_again.to(tl.float32), mask=row_mask)
            tl.store(g2_rows + rows, G2 * (1.0 / GRAD_SCALE), mask=row_mask)
            tl.store(x2_rows + wide, X2, mask=wide_mask)
            tl.store(g1_rows + wide, G1 * (1.0 / GRAD_SCALE), mask=wide_mask)

    tl.debug_barrier()  # W1_out and W2_out can be W1 and W2, which all warps must have read
    if PACKED:
        store_weights(W1, low1, at2, V1 * (1.0 / GRAD_SCALE), whole, PLANES)
        store_weights(W2, low2, at2, V2 * (1.0 / GRAD_SCALE), whole, PLANES)
        tl.store(b1 + f, bias1)
        tl.store(b2 + d, bias2, mask=inside)
    else:
        tl.store(W1_out + at1, V1 * (1.0 / GRAD_SCALE), mask=whole)
        tl.store(W2_out + at2, V2 * (1.0 / GRAD_SCALE), mask=whole)
        tl.store(b1_out + pid * F + f, bias1)
        tl.store(b2_out + pid * D + d, bias2, mask=inside)


launch, launch_packed = partial(common.launch, run), partial(common.launch_packed, run, _forward)
