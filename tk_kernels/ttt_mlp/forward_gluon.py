"""TTT-MLP forward in Gluon: the dual form (ttt_layer.md) for D = 64, F = 256, m <= 16.

One program of 8 warps owns one head of one sequence and loops over its mini-batches. Each warp owns 32 hidden units:
its part of W1^T stays in registers. W2^T is in shared memory, in float32 for the update and in bfloat16 as a matmul
operand. The warps add their partial sums of Z2 and Z2bar [16, 64] through shared memory.
This kernel has fewer barriers and spills than that of `forward.py`. Only bfloat16: float16 needs scaled gradients.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from tk_kernels.forward.common import gelu_slope, gelu_tanh, gradient_coefficients, normalization, packed_sequence
from tk_kernels.generate.common import load_weights, store_weights

WARPS = 8


@gluon.jit
def forward(
    q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2, out, W1_out, b1_out, W2_out,
    b2_out, k_rows, x2_rows, g1_rows, g2_rows, T, H, q_batch, q_token, q_head, k_batch, k_token, k_head,
    v_batch, v_token, v_head, m: gl.constexpr,
    cu_seqlens=None, start=None, slots=None, low1=None, low2=None,
    W1_first=None, b1_first=None, W2_first=None, b2_first=None,
    w_stride=0, b1_stride=0, b2_stride=0, d_stride=0, f_stride=0,
    PACKED: gl.constexpr = False, PLANES: gl.constexpr = False,
):  # fmt: skip
    """Run one head of one sequence. `ttt_mlp.forward` defines the arguments."""
    D: gl.constexpr = 64
    F: gl.constexpr = 256
    M: gl.constexpr = 16
    N: gl.constexpr = 8  # warps
    U: gl.constexpr = F // N
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [N, 1, 1], [1, 16, 8])
    A: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    A2: gl.constexpr = gl.SliceLayout(0, A)
    B2: gl.constexpr = gl.SliceLayout(0, B)
    C: gl.constexpr = 4  # columns per thread
    parts: gl.constexpr = gl.BlockedLayout([N, 1, C], [1, 2, 16], [1, N, 1], [2, 1, 0])  # [N, M, D]
    rows: gl.constexpr = gl.SliceLayout(0, parts)  # [M, D]: each row lies in one warp
    token_row: gl.constexpr = gl.SliceLayout(1, rows)
    token_tile: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    k_shared = gl.allocate_shared_memory(gl.bfloat16, [M, D], token_tile)
    q_shared = gl.allocate_shared_memory(gl.bfloat16, [M, D], token_tile)
    g_shared = gl.allocate_shared_memory(gl.bfloat16, [M, D], token_tile)
    w2_shared = gl.allocate_shared_memory(gl.bfloat16, [N, D, U], gl.SwizzledSharedLayout(8, 2, 4, [2, 1, 0]))
    master2 = gl.allocate_shared_memory(gl.float32, [N, D, U], gl.SwizzledSharedLayout(8, 1, 4, [2, 1, 0]))

    pid = gl.program_id(0).to(gl.int64)
    seq, head = pid // H, pid % H
    begin = 0  # position of token 0 in its mini-batch
    if PACKED:
        first_token, T, before, begin, slot = packed_sequence(cu_seqlens, start, slots, seq, m)
        if T == 0:
            return
        W1_out += slot * w_stride + head * (D * F)
        W2_out += slot * w_stride + head * (D * F)
        if PLANES:
            low1 += slot * w_stride + head * (D * F)
            low2 += slot * w_stride + head * (D * F)
        b1_out += slot * b1_stride + head * F
        b2_out += slot * b2_stride + head * D
        k_rows += slot * d_stride + head * (m * D)
        g2_rows += slot * d_stride + head * (m * D)
        x2_rows += slot * f_stride + head * (m * F)
        g1_rows += slot * f_stride + head * (m * F)
        q += first_token * q_token
        k += first_token * k_token
        v += first_token * v_token
        out += first_token * (H * D)
        lr += first_token * H
        seq, pid = 0, 0  # the pointers above include their offsets
    # W1^T [N, U, D], W2^T [N, D, U]
    n3 = gl.arange(0, N, layout=gl.SliceLayout(1, gl.SliceLayout(2, mma))).expand_dims(1).expand_dims(2)
    u1 = gl.arange(0, U, layout=gl.SliceLayout(0, gl.SliceLayout(2, mma))).expand_dims(0).expand_dims(2)
    d1 = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, mma))).expand_dims(0).expand_dims(1)
    d2 = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(2, mma))).expand_dims(0).expand_dims(2)
    u2 = gl.arange(0, U, layout=gl.SliceLayout(0, gl.SliceLayout(1, mma))).expand_dims(0).expand_dims(1)
    i2 = gl.arange(0, M, layout=gl.SliceLayout(0, gl.SliceLayout(2, mma))).expand_dims(0).expand_dims(2)
    j2 = gl.arange(0, M, layout=gl.SliceLayout(0, gl.SliceLayout(1, mma))).expand_dims(0).expand_dims(1)
    at1 = d1 * F + (n3 * U + u1)
    at2 = (n3 * U + u2) * D + d2
    at_wide = i2 * F + (n3 * U + u2)  # offsets in x2_rows and g1_rows [m, F]
    at1_slot = (n3 * U + u1) * D + d1  # the slots hold W1^T
    if PACKED:
        if before == 0:
            V1 = gl.load(W1_first + head * (D * F) + at1)
            V2 = gl.load(W2_first + head * (D * F) + at2)
            b1 = b1_first + head * F
            b2 = b2_first + head * D
        else:
            V1 = load_weights(W1_out, low1, at1_slot, at1_slot >= 0, PLANES)
            V2 = load_weights(W2_out, low2, at2, at2 >= 0, PLANES)
            b1 = b1_out
            b2 = b2_out
    else:
        V1 = gl.load(W1 + pid * (D * F) + at1)
        V2 = gl.load(W2 + pid * (D * F) + at2)
    master2.store(V2)
    w2_shared.store(V2.to(gl.bfloat16))
    n_bias = gl.arange(0, N, layout=gl.SliceLayout(1, gl.SliceLayout(1, mma))).expand_dims(1)
    u_bias = gl.arange(0, U, layout=gl.SliceLayout(0, gl.SliceLayout(1, mma))).expand_dims(0)
    at_bias1 = pid * F + n_bias * U + u_bias
    # b1, repeated for each token: the initial accumulator of Z1 and Y1
    bias1 = gl.load(b1 + at_bias1).expand_dims(1).broadcast_to([N, M, U])
    ones = gl.full([N, M, M], 1.0, gl.bfloat16, A)  # ones @ G1 is the sum over tokens, in every row
    i_mma = gl.arange(0, M, layout=gl.SliceLayout(0, gl.SliceLayout(2, mma)))
    scale = gl.load(token_scale + i_mma, mask=i_mma < m, other=0).expand_dims(0).expand_dims(2)
    last = gl.load(token_scale + (m - 1))
    updates = (last > 1e-18) | (last < -1e-18)  # a smaller step changes no weight
    g_factor = gl.where(updates, -last, -1.0)  # in G1 and G2, so updates are plain matmuls; -1: it is a divisor
    triangle = gl.where(i2 >= j2, -scale / g_factor, 0.0)

    d = gl.arange(0, D, layout=gl.SliceLayout(0, rows))
    i = gl.arange(0, M, layout=token_row)
    bias2 = gl.load(b2 + pid * D + d)
    gamma = gl.load(ln_weight + head * D + d).expand_dims(0)
    beta = gl.load(ln_bias + head * D + d).expand_dims(0)
    gamma_squared = gamma * gamma
    gamma_squared_sum = gl.sum(gl.sum(gamma_squared, 1), 0)
    q += seq * q_batch + head * q_head
    k += seq * k_batch + head * k_head
    v += seq * v_batch + head * v_head
    out += seq * T * (H * D) + head * D
    lr += seq * T * H + head
    column = d.expand_dims(0)
    token = (i - begin).to(gl.int64)
    valid = (i < m) & (token < T)
    if PACKED:
        valid &= token >= 0
    mask = valid.expand_dims(1) & (column >= 0)
    Q_next = gl.load(q + token.expand_dims(1) * q_token + column, mask=mask, other=0)
    K_next = gl.load(k + token.expand_dims(1) * k_token + column, mask=mask, other=0)
    V_next = gl.load(v + token.expand_dims(1) * v_token + column, mask=mask, other=0)
    rate_next = gl.load(lr + token * H, mask=valid, other=0)
    past = (i < begin).expand_dims(1) & (column >= 0)  # rows of a mini-batch that began before these tokens
    at_rows = pid * (m * D) + i.expand_dims(1) * D + column
    if PACKED:
        K_next = gl.where(past, gl.load(k_rows + at_rows, mask=past, other=0).to(K_next.dtype), K_next)

    for t in range(-begin, T, m):
        Q, K, V, rate = Q_next, K_next, V_next, rate_next
        ends = t + m >= T
        k_shared.store(K.to(gl.bfloat16))
        q_shared.store(Q.to(gl.bfloat16))
        after = (t + m + i).to(gl.int64)
        valid = (i < m) & (after < T)
        mask = valid.expand_dims(1) & (column >= 0)
        Q_next = gl.load(q + after.expand_dims(1) * q_token + column, mask=mask, other=0)
        K_next = gl.load(k + after.expand_dims(1) * k_token + column, mask=mask, other=0)
        V_next = gl.load(v + after.expand_dims(1) * v_token + column, mask=mask, other=0)
        rate_next = gl.load(lr + after * H, mask=valid, other=0)

        # Z1 = K W1 + b1, Y1 = Q W1 + b1, P1 = -tril(s (Q K^T + 1)), X2 = gelu(Z1)
        w1 = gl.convert_layout(V1.to(gl.bfloat16).permute([0, 2, 1]), B, assert_trivial=True)
        zeros = gl.full([N, M, U], 0.0, gl.float32, mma)
        Ka = all_warps(k_shared.load(A2), N, M, D)
        Z1 = mma_v2(Ka, w1, bias1)
        Qa = all_warps(q_shared.load(A2), N, M, D)
        Y1 = mma_v2(Qa, w1, bias1)
        Kt = all_warps(k_shared.permute([1, 0]).load(B2), N, D, M)
        P1 = (mma_v2(Qa, Kt, gl.full([N, M, M], 0.0, gl.float32, mma)) + 1.0) * triangle
        P1 = gl.convert_layout(P1.to(gl.bfloat16), A, assert_trivial=True)
        X2, th = gelu_tanh(Z1)
        slope = gelu_slope(Z1, th)
        if ends:  # store the pending rows; rows past T are 0, except in X2
            gl.store(x2_rows + pid * (m * F) + at_wide, X2, mask=i2 < m)
        x2 = X2.to(gl.bfloat16)

        # Z2 = X2 W2 + b2, G2 = lr * ln_l2_grad(Z2, V - K)
        w2 = w2_shared.permute([0, 2, 1]).load(B)
        zeros2 = gl.full([N, M, D], 0.0, gl.float32, mma)
        Z2 = mma_v2(gl.convert_layout(x2, A, assert_trivial=True), w2, zeros2)
        Z2 = gl.sum(gl.convert_layout(Z2, parts), 0) + bias2.expand_dims(0)
        offset = gamma * (beta - V.to(gl.float32) + K.to(gl.float32))
        u = gamma_squared * Z2
        mean, rstd, mean_g, mean_gx = gradient_coefficients(
            gl.sum(Z2, 1), gl.sum(Z2 * Z2, 1), gl.sum(u, 1), gl.sum(u * Z2, 1), gl.sum(offset * Z2, 1),
            gl.sum(offset, 1), gamma_squared_sum, D,
        )  # fmt: skip
        G2 = (Z2 - mean.expand_dims(1)) * (gamma_squared * rstd.expand_dims(1) - mean_gx.expand_dims(1))
        G2 = (G2 + offset - mean_g.expand_dims(1)) * ((rstd * rate) * g_factor).expand_dims(1)
        if PACKED:
            has_earlier = t < 0
            if has_earlier:  # earlier tokens: load G2, from which G1 follows below
                earlier = gl.load(g2_rows + at_rows, mask=past, other=0).to(gl.float32)
                G2 = gl.where(past, earlier * g_factor, G2)
        g_shared.store(G2.to(gl.bfloat16))
        if ends:
            row_mask = (i < m).expand_dims(1) & (column >= 0)
            gl.store(k_rows + at_rows, K.to(gl.float32), mask=row_mask)
            gl.store(g2_rows + at_rows, G2 / g_factor, mask=row_mask)

        # G1 = (G2 W2^T) * gelu'(Z1), Z1bar = Y1 + P1 G1
        g2a = all_warps(g_shared.load(A2), N, M, D)
        G1 = mma_v2(g2a, w2_shared.load(B), zeros) * slope
        if ends:
            gl.store(g1_rows + pid * (m * F) + at_wide, G1 / g_factor, mask=i2 < m)
        g1 = gl.convert_layout(G1.to(gl.bfloat16), B)
        Y1 = mma_v2(P1, g1, Y1)
        X2bar, _ = gelu_tanh(Y1)
        x2bar = gl.convert_layout(X2bar.to(gl.bfloat16), A, assert_trivial=True)

        # Z2bar = X2bar W2 + b2 - tril(s (X2bar X2^T + 1)) G2, out = Q + LN(Z2bar)
        x2t = gl.convert_layout(x2.permute([0, 2, 1]), B, assert_trivial=True)
        P2 = mma_v2(x2bar, x2t, gl.full([N, M, M], 0.0, gl.float32, mma))
        # Each warp has a partial sum of X2bar X2^T, so each adds 1/N instead of 1
        P2 = gl.convert_layout(((P2 + 1.0 / N) * triangle).to(gl.bfloat16), A, assert_trivial=True)
        Z2bar = mma_v2(x2bar, w2_shared.permute([0, 2, 1]).load(B), zeros2)
        g2b = all_warps(g_shared.load(B2), N, M, D)
        Z2bar = mma_v2(P2, g2b, Z2bar)
        Z2bar = gl.sum(gl.convert_layout(Z2bar, parts), 0) + bias2.expand_dims(0)

        # W1 -= s[m-1] K^T G1, W2 -= s[m-1] X2^T G2, biases too; an incomplete mini-batch changes nothing
        if (t + m <= T) & updates:
            g2t = all_warps(g_shared.permute([1, 0]).load(A2), N, D, M)
            V2 = mma_v2(g2t, gl.convert_layout(x2, B), master2.load(mma))
            master2.store(V2)
            w2_shared.store(V2.to(gl.bfloat16))
            g1t = gl.convert_layout(g1.permute([0, 2, 1]), A, assert_trivial=True)
            V1 = mma_v2(g1t, all_warps(k_shared.load(B2), N, M, D), V1)
            bias1 = mma_v2(ones, g1, bias1)
            bias2 += gl.sum(G2, 0)

        mean, rstd = normalization(gl.sum(Z2bar, 1), gl.sum(Z2bar * Z2bar, 1), D)
        x = Q.to(gl.float32) + gamma * (Z2bar - mean.expand_dims(1)) * rstd.expand_dims(1) + beta
        now = (t + i).to(gl.int64)
        valid_out = (i < m) & (now < T)
        if PACKED:
            valid_out &= now >= 0
        stored = valid_out.expand_dims(1) & (column >= 0)
        gl.store(out + now.expand_dims(1) * (H * D) + column, x.to(out.dtype.element_ty), mask=stored)

    if PACKED:
        store_weights(W1_out, low1, at1_slot, V1, at1_slot >= 0, PLANES)
        store_weights(W2_out, low2, at2, master2.load(mma), at2 >= 0, PLANES)
    else:
        gl.store(W1_out + pid * (D * F) + at1, V1)
        gl.store(W2_out + pid * (D * F) + at2, master2.load(mma))
    gl.store(b1_out + at_bias1, gl.max(bias1, 1))  # all rows are equal
    gl.store(b2_out + pid * D + d, bias2)


@gluon.jit
def all_warps(x, N: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    return x.expand_dims(0).broadcast_to([N, ROWS, COLUMNS])
