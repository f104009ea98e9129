"""TTT-MLP generate on Hopper, in Gluon: the dual form for D = 64, F = 256 hidden units and mini-batches of m <= 16.

Symbols are those of ttt_layer.md. Weights are stored in 16 bits or as planes. One program of four warps runs one head
of one sequence; each warp owns F/4 hidden units. The program copies W1 and W2, or their high planes, to shared memory.
Warps exchange data only for Z2 and Z2bar. Matrix times vector is float32 on CUDA cores. A mini-batch's last token also
reads the low planes, if any, and updates the weights on tensor cores. With at most 168 registers per thread, three
programs fit on an SM, so one program's loads overlap another's work.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from tk_kernels.generate.common import (
    gelu,
    gelu_grad,
    join,
    learning_rate,
    let_next_begin,
    ln_l2_grad,
    load_angles,
    load_token,
    normalise,
    rotate,
    slot_of,
    store_weights,
    tl,
    wait_for_previous,
)
from tk_kernels.generate.gluon import all_loads_before, narrow, widen


@gluon.jit
def dual(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope,
    weights1, low1, b1, weights2, low2, b2, rows_k, rows_x2, rows_g1, rows_g2, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr,
    slots, w_stride, b1_stride, b2_stride, d_stride, f_stride,
    H: gl.constexpr, m: gl.constexpr, SLOTS: gl.constexpr,
    PLANES: gl.constexpr, ROPE: gl.constexpr, LOGITS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Run one token of one head of one sequence. `ttt_mlp.generate` defines the arguments."""
    let_next_begin(PDL)
    D: gl.constexpr = 64
    F: gl.constexpr = 256
    G: gl.constexpr = 4  # warps
    FW: gl.constexpr = F // G  # hidden units per warp
    FT: gl.constexpr = FW // 8  # hidden units per thread
    # [warp, f, d] of W1 transposed and of W2
    tile: gl.constexpr = gl.BlockedLayout([1, FT, 8], [1, 8, 4], [G, 1, 1], [2, 1, 0])
    copied: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 4, 8], [G, 1, 1], [2, 1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 2, 8, [2, 1, 0])
    # [warp, row, d]: every warp has all of it
    of_d: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 8, 4], [G, 1, 1], [2, 1, 0])
    # [warp, row, f]: a thread has four rows of the same FT neighbouring hidden units as in `tile`
    of_f: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 4, 0], [0, 8, 0]],
        [[0, 1, 0], [0, 2, 0], [0, 0, 8], [0, 0, 16], [0, 0, 32]],
        [[1, 0, 0], [2, 0, 0]],
        [],
        [4, 16, 64],
    )
    spread: gl.constexpr = gl.BlockedLayout([G, 2], [1, 32], [G, 1], [1, 0])  # [warp, d]: a thread has two d
    per_d: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, tile))
    per_f: gl.constexpr = gl.SliceLayout(2, tile)
    lane_d: gl.constexpr = gl.SliceLayout(0, spread)
    partial: gl.constexpr = gl.SliceLayout(1, tile)

    pid = gl.program_id(0).to(gl.int64)
    seq, head = pid // H, pid % H
    slot = slot_of(slots, seq, SLOTS)
    weights1 += slot * w_stride + head * (D * F)
    weights2 += slot * w_stride + head * (D * F)
    b1 += slot * b1_stride + head * F
    b2 += slot * b2_stride + head * D
    rows_k += slot * d_stride + head * (m * D)
    rows_x2 += slot * f_stride + head * (m * F)
    rows_g1 += slot * f_stride + head * (m * F)
    rows_g2 += slot * d_stride + head * (m * D)
    w1_shared = gl.allocate_shared_memory(weights1.dtype.element_ty, [G, FW, D], shared)
    w2_shared = gl.allocate_shared_memory(weights1.dtype.element_ty, [G, FW, D], shared)
    sums_z2 = gl.allocate_shared_memory(gl.float32, [G, D], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    sums_zbar2 = gl.allocate_shared_memory(gl.float32, [G, D], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    g2_shared = gl.allocate_shared_memory(rows_k.dtype.element_ty, [16, D], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
    at = offsets(copied, G, FW, D, FW)
    async_copy.async_copy_global_to_shared(w1_shared, weights1 + at)
    async_copy.commit_group()
    async_copy.async_copy_global_to_shared(w2_shared, weights2 + at)
    async_copy.commit_group()

    pos = gl.load(position + pid, cache_modifier=".cg")  # the state is read once: bypass the L1
    rd = gl.arange(0, D, layout=lane_d)
    valid = rd < D
    gamma = gl.load(ln_weight + head * D + rd)
    beta = gl.load(ln_bias + head * D + rd)
    bias2 = gl.load(b2 + rd, cache_modifier=".cg")
    rf = gl.arange(0, G, layout=gl.SliceLayout(1, per_f))[:, None] * FW
    rf = rf + gl.arange(0, FW, layout=gl.SliceLayout(0, per_f))[None, :]
    bias1 = gl.load(b1 + rf, cache_modifier=".cg")
    scale = gl.load(token_scale + pos).to(gl.float32)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    past_k = load_rows(rows_k, pos, of_d, G, 0, D, D, PDL)
    past_g1 = load_rows(rows_g1, pos, of_f, G, FW, FW, F, PDL)
    past_x2 = load_rows(rows_x2, pos, of_f, G, FW, FW, F, PDL)
    g2_copied: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [G, 1], [1, 0])
    row = gl.arange(0, 16, layout=gl.SliceLayout(1, g2_copied)).expand_dims(1)
    at_row = row * D + gl.arange(0, D, layout=gl.SliceLayout(0, g2_copied)).expand_dims(0)
    earlier = (row < pos) & (at_row >= 0)
    async_copy.async_copy_global_to_shared(g2_shared, rows_g2 + at_row, mask=earlier)
    async_copy.commit_group()
    wait_for_previous(PDL)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = gl.load(v + seq * v_stride + head * D + rd)
    rate = gl.load(lr + seq * lr_stride + head)
    if PLANES:
        low1 += slot * w_stride + head * (D * F)
        low2 += slot * w_stride + head * (D * F)
    row_type: gl.constexpr = rows_g1.dtype.element_ty
    all_loads_before(pos)

    # Z1 = k @ W1 + b1 ; Z1bar = q @ W1 + b1 - s_i * sum_{j < i} (q . k_j + 1) g1_j, and the term of j = i below
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    k_per_d, q_per_d = gl.convert_layout(kf, per_d), gl.convert_layout(qf, per_d)
    q_rows = along_d(gl.convert_layout(q_per_d, gl.SliceLayout(0, gl.SliceLayout(1, of_d)), assert_trivial=True))
    weight1 = -scale * (gl.sum(q_rows * widen(past_k), 2) + 1.0)
    weight1 = gl.convert_layout(weight1, gl.SliceLayout(2, of_f))
    past1 = gl.sum(weight1.expand_dims(2) * widen(past_g1), 1)
    async_copy.wait_group(2)
    w1 = widen(w1_shared.load(tile))
    z1 = gl.sum(w1 * along_d(k_per_d), 2) + bias1
    zbar1 = gl.sum(w1 * along_d(q_per_d), 2) + bias1 + gl.convert_layout(past1, per_f)
    # X2 = gelu(Z1) ; Z2 = X2 @ W2 + b2
    x2 = gelu(z1)
    async_copy.wait_group(1)
    sums_z2.store(gl.sum(widen(w2_shared.load(tile)) * x2.expand_dims(2), 1))
    z2 = gl.sum(sums_z2.load(spread), 0) + bias2
    # G2 ; G1 = (G2 @ W2^T) * gelu'(Z1) ; g = lr * G, rounded as in the cache
    rate = learning_rate(rate, base_lr, D, LOGITS)
    gamma, beta = gamma.to(gl.float32), beta.to(gl.float32)
    grad2 = ln_l2_grad(z2, v_row.to(gl.float32) - kf, gamma, beta, valid, D)
    g2 = (rate * grad2).to(row_type)
    grad2_per_d = gl.convert_layout(grad2, per_d)
    grad1 = gl.sum(widen(w2_shared.load(tile)) * along_d(grad2_per_d), 2) * gelu_grad(z1)
    x2 = narrow(x2, row_type)
    g1 = narrow(rate * grad1, row_type)
    zbar1 -= scale * (gl.sum(qf * kf, 0) + 1.0) * widen(g1)
    xbar2 = gelu(zbar1)
    # Z2bar = X2bar @ W2 + b2 - s_i * sum_{j <= i} (X2bar . X2_j + 1) g2_j
    # Each warp computes X2bar . X2_j over its hidden units; the first warp adds the 1
    one = gl.where(gl.arange(0, G, layout=gl.SliceLayout(1, partial)) == 0, 1.0, 0.0)
    weight2 = gl.convert_layout(xbar2, gl.SliceLayout(1, of_f)).expand_dims(1) * widen(past_x2)
    weight2 = gl.convert_layout(gl.sum(weight2, 2), gl.SliceLayout(2, of_d))
    weight2 += gl.convert_layout(one, gl.SliceLayout(1, gl.SliceLayout(2, of_d))).expand_dims(1)
    own2 = gl.convert_layout(gl.sum(xbar2 * widen(x2), 1), gl.SliceLayout(1, partial)) + one
    g2_per_d = widen(narrow(rate * grad2_per_d, row_type))
    async_copy.wait_group(0)
    past_g2 = g2_shared.load(gl.SliceLayout(0, of_d)).expand_dims(0)
    # sums within a thread, then once over the lanes: [warp, 8 lanes, D]
    past2 = gl.sum((weight2.expand_dims(2) * widen(past_g2)).reshape([G, 2, 8, D]), 1)
    zbar2 = gl.sum((widen(w2_shared.load(tile)) * xbar2.expand_dims(2)).reshape([G, 8, FT, D]), 2)
    zbar2 = gl.sum(zbar2 - scale * gl.convert_layout(past2, zbar2.type.layout, assert_trivial=True), 1)
    zbar2 = gl.convert_layout(zbar2, partial, assert_trivial=True)
    own = own2.expand_dims(1) * gl.convert_layout(g2_per_d, gl.SliceLayout(0, partial)).expand_dims(0)
    sums_zbar2.store(zbar2 - scale * own)
    zbar2 = gl.sum(sums_zbar2.load(spread), 0) + bias2
    xhat, _ = normalise(zbar2, valid, D)
    gl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty))

    gl.store(rows_k + pos * D + rd, kf.to(row_type))
    gl.store(rows_x2 + pos * F + rf, x2)
    gl.store(rows_g1 + pos * F + rf, g1)
    gl.store(rows_g2 + pos * D + rd, g2)
    if not SLOTS:
        gl.store(position + pid, gl.where(pos < m - 1, pos + 1, 0))
    if pos == m - 1:
        tl.debug_barrier()  # the rows just written are read back
        apply_rows(w1_shared, weights1, low1, b1, rows_g1, rows_k, scale, G, FW, m, PLANES, True)
        apply_rows(w2_shared, weights2, low2, b1, rows_x2, rows_g2, scale, G, FW, m, PLANES, False)
        sum_g2 = gl.sum(widen(g2_shared.load(gl.BlockedLayout([16, 2], [1, 32], [G, 1], [1, 0]))), 0)
        sum_g2 = gl.convert_layout(sum_g2, lane_d, assert_trivial=True) + widen(g2)
        gl.store(b2 + rd, bias2 - scale * sum_g2)


@gluon.jit
def offsets(layout: gl.constexpr, G: gl.constexpr, N: gl.constexpr, D: gl.constexpr, FW: gl.constexpr):
    """Return offsets [G, N, D] in a weight [F, D]: warp w of G warps has the N rows from row w * FW on."""
    warp = gl.arange(0, G, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout))).expand_dims(1).expand_dims(2)
    f = gl.arange(0, N, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout))).expand_dims(0).expand_dims(2)
    d = gl.arange(0, D, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout))).expand_dims(0).expand_dims(1)
    return (warp * FW + f) * D + d


@gluon.jit
def load_rows(
    rows, pos, layout: gl.constexpr, G: gl.constexpr, STEP: gl.constexpr, N: gl.constexpr, ROW: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Load x [G, 16, N] from rows [m, ROW]: x[w, j, n] = rows[j, w * STEP + n], 0 for j >= pos."""
    warp = gl.arange(0, G, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout))).expand_dims(1).expand_dims(2)
    row = gl.arange(0, 16, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout))).expand_dims(0).expand_dims(2)
    column = gl.arange(0, N, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout))).expand_dims(0).expand_dims(1)
    at = warp * STEP + row * ROW + column
    return gl.load(rows + at, mask=(row < pos) & (at >= 0), other=0, cache_modifier=".cg" if PDL else "")


@gluon.jit
def along_d(x):
    return x.expand_dims(0).expand_dims(1)


@gluon.jit
def apply_rows(
    high, weights, low, bias, rows_f, rows_d, scale,
    G: gl.constexpr, FW: gl.constexpr, m: gl.constexpr, PLANES: gl.constexpr, BIAS: gl.constexpr,
):  # fmt: skip
    """Store W - scale rows_f^T rows_d. Each warp updates FW = F / G hidden units, 16 at a time.

    rows_f [m, F], rows_d [m, D]: a mini-batch's cached rows. scale: token_scale[m - 1]. G: warps.
    high [G, FW, D]: W in shared memory; with PLANES, its high plane. weights [F, D]: the result.
    low [F, D]: with PLANES, the low plane, updated in place. BIAS: also update bias -= scale sum(rows_f).
    The matmul reads permuted columns of rows_d, so that a thread's results are runs of 8 consecutive columns of W.
    """
    D: gl.constexpr = 64
    F: gl.constexpr = G * FW
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [G, 1], [16, 8])
    left: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    right: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    tile: gl.constexpr = gl.BlockedLayout([1, 1, 8], [1, 8, 4], [G, 1, 1], [2, 1, 0])
    c = gl.arange(0, D, layout=gl.SliceLayout(0, right)).expand_dims(0)
    rd = (c & 33) + ((c >> 1) & 3) * 8 + ((c >> 3) & 3) * 2
    j = gl.arange(0, 16, layout=gl.SliceLayout(1, right)).expand_dims(1)
    d_rows = gl.load(rows_d + j * D + rd, mask=(j < m) & (rd >= 0), other=0)
    jf = gl.arange(0, 16, layout=gl.SliceLayout(0, left)).expand_dims(0)
    unit = gl.arange(0, 16 * G, layout=gl.SliceLayout(1, left))
    unit = unit // 16 * FW + unit % 16
    at = offsets(tile, G, 16, D, FW)
    for first in gl.static_range(0, FW, 16):
        f = unit + first
        f_rows = gl.load(rows_f + jf * F + f.expand_dims(1), mask=(jf < m) & (f.expand_dims(1) >= 0), other=0)
        if PLANES:
            rest = gl.load(low + first * D + at)
        update = mma_v2(f_rows, d_rows, gl.full([16 * G, D], 0.0, gl.float32, mma))
        update = update.reshape([G, 16, 2, 4, 4, 2]).permute([0, 1, 2, 4, 3, 5]).reshape([G, 16, D])
        update = gl.convert_layout(update, tile, assert_trivial=True)
        w = high.slice(first, 16, 1).load(tile)
        if PLANES:
            w = join(w, rest)
        store_weights(weights, low, first * D + at, w.to(gl.float32) - scale * update, at >= 0, PLANES)
        if BIAS:
            gl.store(bias + f, gl.load(bias + f) - scale * gl.sum(f_rows.to(gl.float32), 1))
