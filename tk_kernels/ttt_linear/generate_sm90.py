"""TTT-Linear generate on Hopper, in Gluon: the dual form for D = 64 and m <= 16.

W is stored in 16 bits or as planes. A program is one warp and owns one head of one sequence. It copies W (or its
high plane) and the cached rows to shared memory, to save registers. k @ W and q @ W are float32 on CUDA cores: a thread
owns 16 rows and 8 columns of W. The update of W, after the mini-batch's last token, runs on tensor cores.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from tk_kernels.generate.common import (
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
    wait_for_previous,
)
from tk_kernels.generate.gluon import widen


@gluon.jit
def dual(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope, weights, low, b, rows_k, rows_g, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr, slots, w_stride, b_stride, row_stride,
    H: gl.constexpr, m: gl.constexpr, SLOTS: gl.constexpr,
    PLANES: gl.constexpr, ROPE: gl.constexpr, LOGITS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Run one token of one head of one sequence. `ttt_linear.generate` defines the arguments."""
    let_next_begin(PDL)
    D: gl.constexpr = 64
    copied: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])  # a thread copies 8 columns, 16 bytes
    tile: gl.constexpr = gl.BlockedLayout([16, 8], [4, 8], [1, 1], [1, 0])  # W: a thread has 8 columns of 16 rows
    of_rows: gl.constexpr = gl.BlockedLayout([4, 8], [4, 8], [1, 1], [1, 0])  # [16, D]: 8 columns of 4 cached rows
    spread: gl.constexpr = gl.BlockedLayout([4, 2], [1, 32], [1, 1], [1, 0])  # [4, D]: a thread has two columns
    lane_d: gl.constexpr = gl.SliceLayout(0, spread)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    row_type: gl.constexpr = rows_g.dtype.element_ty

    pid = gl.program_id(0).to(gl.int64)
    seq, head = pid // H, pid % H
    slot = slot_of(slots, seq, SLOTS)
    weights += slot * w_stride + head * (D * D)
    b += slot * b_stride + head * D
    rows_k += slot * row_stride + head * (m * D)
    rows_g += slot * row_stride + head * (m * D)
    w_shared = gl.allocate_shared_memory(weights.dtype.element_ty, [D, D], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
    k_shared = gl.allocate_shared_memory(row_type, [16, D], plain)
    g_shared = gl.allocate_shared_memory(row_type, [16, D], plain)
    vectors = gl.allocate_shared_memory(gl.float32, [2, D], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    sums = gl.allocate_shared_memory(gl.float32, [4, D], plain)
    pos = gl.load(position + pid, cache_modifier=".cg")  # the state is read once: bypass the L1
    row = gl.arange(0, D, layout=gl.SliceLayout(1, copied)).expand_dims(1)
    column = gl.arange(0, D, layout=gl.SliceLayout(0, copied)).expand_dims(0)
    async_copy.async_copy_global_to_shared(w_shared, weights + row * D + column)
    async_copy.commit_group()
    rd = gl.arange(0, D, layout=lane_d)
    valid = rd < D
    gamma = gl.load(ln_weight + head * D + rd).to(gl.float32)
    beta = gl.load(ln_bias + head * D + rd).to(gl.float32)
    bias = gl.load(b + rd, cache_modifier=".cg")
    scale = gl.load(token_scale + pos).to(gl.float32)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    # Rows from this token on are not read; they become 0
    cached = gl.arange(0, 16, layout=gl.SliceLayout(1, copied)).expand_dims(1)
    earlier = (cached < pos) & (column >= 0)
    async_copy.async_copy_global_to_shared(k_shared, rows_k + cached * D + column, mask=earlier)
    async_copy.async_copy_global_to_shared(g_shared, rows_g + cached * D + column, mask=earlier)
    async_copy.commit_group()
    wait_for_previous(PDL)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = gl.load(v + seq * v_stride + head * D + rd)
    rate = gl.load(lr + seq * lr_stride + head)

    # Z = k @ W + b ; a thread sums its 16 rows, and the four sums of a column are added through shared memory
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    vectors.index(0).store(kf)
    vectors.index(1).store(qf)
    k_by_row = vectors.index(0).load(gl.SliceLayout(1, tile)).expand_dims(1)
    q_by_row = vectors.index(1).load(gl.SliceLayout(1, tile)).expand_dims(1)
    async_copy.wait_group(1)
    w = widen(w_shared.load(tile))
    sums.store(gl.sum((w * k_by_row).reshape([4, 16, D]), 1))
    zbar = gl.sum((w * q_by_row).reshape([4, 16, D]), 1)
    z = gl.sum(sums.load(spread), 0) + bias
    # Zbar = q @ W + b - s_i * sum_{j < i} (q . k_j + 1) g_j, and the term of j = i below
    async_copy.wait_group(0)
    q_by_column = vectors.index(1).load(gl.SliceLayout(0, of_rows)).expand_dims(0)
    weight = gl.sum(widen(k_shared.load(of_rows)) * q_by_column, 1) + 1.0
    step = gl.sum((widen(g_shared.load(of_rows)) * weight.expand_dims(1)).reshape([4, 4, D]), 1)
    sums.store(zbar - scale * gl.convert_layout(step, zbar.type.layout, assert_trivial=True))
    zbar = gl.sum(sums.load(spread), 0) + bias
    # g = lr * G, rounded as in the cache
    eta = learning_rate(rate, base_lr, D, LOGITS)
    g_row = (eta * ln_l2_grad(z, v_row.to(gl.float32) - kf, gamma, beta, valid, D)).to(row_type)
    zbar -= scale * (gl.sum(qf * kf, 0) + 1.0) * g_row.to(gl.float32)
    xhat, _ = normalise(zbar, valid, D)
    gl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty))

    k_row = kf.to(row_type)
    gl.store(rows_k + pos * D + rd, k_row)
    gl.store(rows_g + pos * D + rd, g_row)
    if not SLOTS:
        gl.store(position + pid, gl.where(pos < m - 1, pos + 1, 0))
    if pos == m - 1:
        k_shared.slice(m - 1, 1, 0).store(k_row.expand_dims(0))
        g_shared.slice(m - 1, 1, 0).store(g_row.expand_dims(0))
        sum_g = gl.sum(widen(g_shared.load(gl.BlockedLayout([16, 2], [1, 32], [1, 1], [1, 0]))), 0)
        gl.store(b + rd, bias - scale * gl.convert_layout(sum_g, lane_d, assert_trivial=True))
        if PLANES:
            low += slot * w_stride + head * (D * D)
        apply_rows(w_shared, k_shared, g_shared, weights, low, scale, PLANES)


@gluon.jit
def apply_rows(w_shared, k_shared, g_shared, weights, low, scale, PLANES: gl.constexpr):
    """Store W - scale K^T g for cached rows K and g = lr * G, 16 rows of W at a time.

    k_shared, g_shared [16, D]: K and g, with zeros in rows m to 15. scale: token_scale[m - 1].
    w_shared [D, D]: W. weights [D, D]: the result. With PLANES, both are high planes, and `low` is updated in place.
    """
    D: gl.constexpr = 64
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    tile: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [1, 1], [1, 0])
    # The matmul's columns are a permutation of d (bits 5, 2, 1, 4, 3, 0), so a thread's results are neighbours in d.
    permuted: gl.constexpr = gl.SharedLinearLayout(
        [[0, 1], [0, 8], [0, 16], [0, 2], [0, 4], [0, 32], [1, 0], [2, 0], [4, 0], [8, 0]]
    )
    row = gl.arange(0, 16, layout=gl.SliceLayout(1, tile)).expand_dims(1)
    column = gl.arange(0, D, layout=gl.SliceLayout(0, tile)).expand_dims(0)
    g = g_shared._reinterpret(g_shared.dtype, [16, D], permuted).load(gl.DotOperandLayout(1, mma, 2))
    for first in gl.static_range(0, D, 16):
        at = (row + first) * D + column
        if PLANES:
            rest = gl.load(low + at, eviction_policy="evict_first")
        k = k_shared.slice(first, 16, 1).permute((1, 0)).load(gl.DotOperandLayout(0, mma, 2))
        update = mma_v2(k, g, gl.full([16, D], 0.0, gl.float32, mma))
        update = update.reshape([16, 2, 4, 4, 2]).permute([0, 1, 3, 2, 4]).reshape([16, D])
        update = gl.convert_layout(update, tile, assert_trivial=True)
        w = w_shared.slice(first, 16, 0).load(tile)
        if PLANES:
            w = join(w, rest)
        store_weights(weights, low, at, w.to(gl.float32) - scale * update, at >= 0, PLANES)
