"""TTT-MLP forward in Gluon for heads of 64 channels and mini-batches of up to 16: fewer barriers, no spills.

Warp n owns 32 hidden units. W1^T is an accumulator in registers. W2^T stays in shared memory, in float32 and rounded.
Z2 and Z2bar are sums over the warps and pass through shared memory once each; LayerNorm's rows lie inside a warp.
Compared with the kernel in `forward.py`: 7 barriers per mini-batch instead of 27, and 134 KB of shared memory.
"""
# mypy: allow-untyped-defs
# (Triton reads the annotations of kernels, and knows no types but gl.constexpr)

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from tk_kernels.forward.common import gelu_slope, gelu_tanh, gradient_coefficients, normalization

WARPS = 8


@gluon.jit
def forward(
    q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2, out, W1_out, b1_out, W2_out,
    b2_out, k_rows, x2_rows, g1_rows, g2_rows, T, H, q_batch, q_token, q_head, k_batch, k_token, k_head,
    v_batch, v_token, v_head, m: gl.constexpr, DOT: gl.constexpr, UP: gl.constexpr,
):  # fmt: skip
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
    C: gl.constexpr = 4  # columns of a thread
    parts: gl.constexpr = gl.BlockedLayout([N, 1, C], [1, 2, 16], [1, N, 1], [2, 1, 0])  # [N, M, D]
    rows: gl.constexpr = gl.SliceLayout(0, parts)  # [M, D]: a warp has whole rows
    token_row: gl.constexpr = gl.SliceLayout(1, rows)
    token_tile: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    k_shared = gl.allocate_shared_memory(DOT, [M, D], token_tile)
    q_shared = gl.allocate_shared_memory(DOT, [M, D], token_tile)
    g_shared = gl.allocate_shared_memory(DOT, [M, D], token_tile)
    w2_shared = gl.allocate_shared_memory(DOT, [N, D, U], gl.SwizzledSharedLayout(8, 2, 4, [2, 1, 0]))
    master2 = gl.allocate_shared_memory(gl.float32, [N, D, U], gl.SwizzledSharedLayout(8, 1, 4, [2, 1, 0]))

    pid = gl.program_id(0).to(gl.int64)
    seq, head = pid // H, pid % H
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
    wide = i2 * F + (n3 * U + u2)  # of rows [m, F]
    V1 = gl.load(W1 + pid * (D * F) + at1) * UP
    V2 = gl.load(W2 + pid * (D * F) + at2) * UP
    master2.store(V2)
    w2_shared.store((V2 * (1.0 / UP)).to(DOT))
    n_bias = gl.arange(0, N, layout=gl.SliceLayout(1, gl.SliceLayout(1, mma))).expand_dims(1)
    u_bias = gl.arange(0, U, layout=gl.SliceLayout(0, gl.SliceLayout(1, mma))).expand_dims(0)
    at_bias1 = pid * F + n_bias * U + u_bias
    # b1 of every token: the accumulator of Z1 and of Y1
    bias1 = gl.load(b1 + at_bias1).expand_dims(1).broadcast_to([N, M, U])
    ones = gl.full([N, M, M], 1.0 / UP, DOT, A)
    i_mma = gl.arange(0, M, layout=gl.SliceLayout(0, gl.SliceLayout(2, mma)))
    scale = gl.load(token_scale + i_mma, mask=i_mma < m, other=0).expand_dims(0).expand_dims(2)
    last = gl.load(token_scale + (m - 1))
    updates = last > 0
    RISE = gl.where(updates, -last, -1.0) * UP  # gradients are kept times this
    triangle = gl.where(i2 >= j2, -scale / RISE, 0.0)

    d = gl.arange(0, D, layout=gl.SliceLayout(0, rows))
    i = gl.arange(0, M, layout=token_row)
    bias2 = gl.load(b2 + pid * D + d)
    gamma = gl.load(ln_weight + head * D + d).expand_dims(0)
    beta = gl.load(ln_bias + head * D + d).expand_dims(0)
    gamma_squared = gamma * gamma
    gamma_sum = gl.sum(gl.sum(gamma_squared, 1), 0)
    q += seq * q_batch + head * q_head
    k += seq * k_batch + head * k_head
    v += seq * v_batch + head * v_head
    out += seq * T * (H * D) + head * D
    lr += seq * T * H + head
    column = d.expand_dims(0)
    valid = (i < m) & (i < T)
    mask = valid.expand_dims(1) & (column >= 0)
    token = i.to(gl.int64)
    Q_next = gl.load(q + token.expand_dims(1) * q_token + column, mask=mask, other=0)
    K_next = gl.load(k + token.expand_dims(1) * k_token + column, mask=mask, other=0)
    V_next = gl.load(v + token.expand_dims(1) * v_token + column, mask=mask, other=0)
    rate_next = gl.load(lr + token * H, mask=valid, other=0)

    for t in range(0, T, m):
        Q, K, V, rate = Q_next, K_next, V_next, rate_next
        ends = t + m >= T
        k_shared.store(K.to(DOT))
        q_shared.store(Q.to(DOT))
        after = (t + m + i).to(gl.int64)
        valid = (i < m) & (after < T)
        mask = valid.expand_dims(1) & (column >= 0)
        Q_next = gl.load(q + after.expand_dims(1) * q_token + column, mask=mask, other=0)
        K_next = gl.load(k + after.expand_dims(1) * k_token + column, mask=mask, other=0)
        V_next = gl.load(v + after.expand_dims(1) * v_token + column, mask=mask, other=0)
        rate_next = gl.load(lr + after * H, mask=valid, other=0)

        # Z1 = K W1 + b1, Y1 = Q W1 + b1, P1 = -tril(s (Q K^T + 1)), X2 = gelu(Z1)
        w1 = gl.convert_layout((V1 * (1.0 / UP)).to(DOT).permute([0, 2, 1]), B, assert_trivial=True)
        none = gl.full([N, M, U], 0.0, gl.float32, mma)
        Ka = all_warps(k_shared.load(A2), N, M, D)
        Z1 = mma_v2(Ka, w1, bias1)
        Qa = all_warps(q_shared.load(A2), N, M, D)
        Y1 = mma_v2(Qa, w1, bias1)
        Kt = all_warps(k_shared.permute([1, 0]).load(B2), N, D, M)
        P1 = (mma_v2(Qa, Kt, gl.full([N, M, M], 0.0, gl.float32, mma)) + 1.0) * triangle
        P1 = gl.convert_layout(P1.to(DOT), A, assert_trivial=True)
        X2, th = gelu_tanh(Z1, False)
        slope = gelu_slope(Z1, th)
        if ends:  # the pending rows; those that do not count are 0 (of X2: any finite number)
            gl.store(x2_rows + pid * (m * F) + wide, X2, mask=i2 < m)
        x2 = X2.to(DOT)

        # Z2 = X2 W2 + b2, G2 = lr * ln_l2_grad(Z2, V - K)
        w2 = w2_shared.permute([0, 2, 1]).load(B)
        none2 = gl.full([N, M, D], 0.0, gl.float32, mma)
        Z2 = mma_v2(gl.convert_layout(x2, A, assert_trivial=True), w2, none2)
        Z2 = gl.sum(gl.convert_layout(Z2, parts), 0) + bias2.expand_dims(0)
        offset = gamma * (beta - V.to(gl.float32) + K.to(gl.float32))
        u = gamma_squared * Z2
        mean, rstd, mean_g, mean_gx = gradient_coefficients(
            gl.sum(Z2, 1), gl.sum(Z2 * Z2, 1), gl.sum(u, 1), gl.sum(u * Z2, 1), gl.sum(offset * Z2, 1),
            gl.sum(offset, 1), gamma_sum, D,
        )  # fmt: skip
        G2 = (Z2 - mean.expand_dims(1)) * (gamma_squared * rstd.expand_dims(1) - mean_gx.expand_dims(1))
        G2 = (G2 + offset - mean_g.expand_dims(1)) * ((rstd * rate) * RISE).expand_dims(1)
        g_shared.store(G2.to(DOT))
        if ends:
            at_rows = pid * (m * D) + i.expand_dims(1) * D + column
            kept = (i < m).expand_dims(1) & (column >= 0)
            gl.store(k_rows + at_rows, K.to(gl.float32), mask=kept)
            gl.store(g2_rows + at_rows, G2 / RISE, mask=kept)

        # G1 = (G2 W2^T) * gelu'(Z1), Z1bar = Y1 + P1 G1
        g2a = all_warps(g_shared.load(A2), N, M, D)
        G1 = mma_v2(g2a, w2_shared.load(B), none) * slope
        if ends:
            gl.store(g1_rows + pid * (m * F) + wide, G1 / RISE, mask=i2 < m)
        g1 = gl.convert_layout(G1.to(DOT), B)
        Y1 = mma_v2(P1, g1, Y1)
        X2bar, _ = gelu_tanh(Y1, False)
        x2bar = gl.convert_layout(X2bar.to(DOT), A, assert_trivial=True)

        # Z2bar = X2bar W2 + b2 - tril(s (X2bar X2^T + 1)) G2, out = Q + LN(Z2bar)
        x2t = gl.convert_layout(x2.permute([0, 2, 1]), B, assert_trivial=True)
        P2 = mma_v2(x2bar, x2t, gl.full([N, M, M], 0.0, gl.float32, mma))
        P2 = gl.convert_layout(((P2 + 1.0 / N) * triangle).to(DOT), A, assert_trivial=True)
        Z2bar = mma_v2(x2bar, w2_shared.permute([0, 2, 1]).load(B), none2)
        g2b = all_warps(g_shared.load(B2), N, M, D)
        Z2bar = mma_v2(P2, g2b, Z2bar)
        Z2bar = gl.sum(gl.convert_layout(Z2bar, parts), 0) + bias2.expand_dims(0)

        # W1 and W2, unless the mini-batch is short
        if (t + m <= T) & updates:
            g2t = all_warps(g_shared.permute([1, 0]).load(A2), N, D, M)
            V2 = mma_v2(g2t, gl.convert_layout(x2, B), master2.load(mma))
            master2.store(V2)
            w2_shared.store((V2 * (1.0 / UP)).to(DOT))
            g1t = gl.convert_layout(g1.permute([0, 2, 1]), A, assert_trivial=True)
            V1 = mma_v2(g1t, all_warps(k_shared.load(B2), N, M, D), V1)
            bias1 = mma_v2(ones, g1, bias1)
            bias2 += gl.sum(G2, 0) * (1.0 / UP)

        mean, rstd = normalization(gl.sum(Z2bar, 1), gl.sum(Z2bar * Z2bar, 1), D)
        x = Q.to(gl.float32) + gamma * (Z2bar - mean.expand_dims(1)) * rstd.expand_dims(1) + beta
        now = (t + i).to(gl.int64)
        stored = ((i < m) & (now < T)).expand_dims(1) & (column >= 0)
        gl.store(out + now.expand_dims(1) * (H * D) + column, x.to(out.dtype.element_ty), mask=stored)

    gl.store(W1_out + pid * (D * F) + at1, V1 * (1.0 / UP))
    gl.store(W2_out + pid * (D * F) + at2, master2.load(mma) * (1.0 / UP))
    gl.store(b1_out + at_bias1, gl.max(bias1, 1))
    gl.store(b2_out + pid * D + d, bias2)


@gluon.jit
def all_warps(x, N: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
    """One operand [ROWS, COLUMNS] for each of N warps."""
    return x.expand_dims(0).broadcast_to([N, ROWS, COLUMNS])
