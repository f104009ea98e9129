"""A TTT block's causal depthwise convolutions (4 taps), fused with adjacent operations.

The kernels take the tensors of `residual_convolution` and `query_key`, and in addition:
cache, after: each sequence's last three inputs [3, C], before and after the tokens, with cache_stride over sequences.
    With SLOTS, sequence s has the index slots[s] in both.
T: tokens per sequence. CHUNK: tokens per program. CP, HP: C and H padded to powers of two.
x_stride, logit_stride, position_stride: strides over tokens of x and lr_logits, and over sequences of position.
weight_stride, tap_stride: strides of a convolution's weight over channels and taps.
PACKED: sequences of different lengths. `Packed` defines cu_seqlens, starts (its `start`), chunks and slots.
    Sequence s has the index s in `cache`, and slots[s] in `after`, with stride after_stride.
added, normed: the results of `residual_convolution`. x0 to x3: a convolution's inputs 0 to 3 tokens back.
"""

from typing import Any

import torch
from torch import Tensor

from tk_kernels.checks import check_choice, check_contiguous, check_devices, check_parameter, check_shape
from tk_kernels.edges.norms_and_gates import rms_normed
from tk_kernels.generate.common import (
    dependent_launch,
    jit,
    let_next_begin,
    on_its_device,
    slot_of,
    tl,
    triton,
    wait_for_previous,
)
from tk_kernels.packed import CHUNK, Packed

TAPS = 4  # inputs per output of a convolution
BLOCK = 128  # channels per program of query_key, which is one warp: four channels per thread


@on_its_device
def residual_convolution(
    h: Tensor,
    cache: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor,
    next_norm: Tensor,
    eps: float,
    *,
    pdl: bool = False,
    slots: Tensor | None = None,
    sequences: Packed | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (y, RMSNorm(y)) with y = h + conv(RMSNorm(h)), both [B, T, C] in h's dtype.

    h [B, T, C] contiguous. cache [B, 3, C]: the last three inputs of conv, oldest first, replaced in place.
    slots [B], only with T = 1: sequence b uses cache[slots[b]]. The cache may have any size and stride in dimension 0.
    sequences (B = 1): layout of T tokens. Sequence s uses cache[sequences.slots[s]], and reads zeros if its start is 0.
    norm, next_norm [C]: weights of the first and second RMSNorm. weight [C, 1, 4], bias [C]: parameters of conv.
    pdl: use programmatic dependent launch; the kernel may read all arguments except h before earlier launches end.
    Sums are float32; the convolution's inputs and y are rounded to h's dtype.
    Raises ValueError on a wrong shape, stride or device, and if T * C exceeds 2^31.
    """
    B, T, C = h.shape
    if T * C > 1 << 31:
        raise ValueError(f"h has {T} tokens of {C} channels: a sequence has at most 2^31 elements, split it")
    check_contiguous("h", h)
    _check_cache(cache, slots, sequences, (B, T, C))
    check_shape("weight", weight, (C, 1, TAPS))
    for name, x in (("norm", norm), ("next_norm", next_norm), ("bias", bias)):
        check_parameter(name, x, (C,))
    check_devices(h=h, cache=cache, norm=norm, weight=weight, bias=bias, next_norm=next_norm)
    added, normed = torch.empty_like(h), torch.empty_like(h)
    if not h.numel():
        return added, normed
    before, after, chunks, where = _layout(cache, B, T, slots, sequences)
    _residual_convolution[(chunks,)](
        h, before, after, norm, weight, bias, next_norm, added, normed, before.stride(0), T if sequences is None else 0,
        *weight.stride()[::2], eps, C=C, CP=triton.next_power_of_2(C), num_warps=8, **where, **dependent_launch(pdl),
    )  # fmt: skip
    if after is not cache:
        cache.copy_(after)
    return added, normed


@on_its_device
def query_key(
    x: Tensor,
    cache: Tensor,
    conv_q: tuple[Tensor, Tensor],
    conv_k: tuple[Tensor, Tensor],
    rope: tuple[Tensor, Tensor],
    position: Tensor,
    lr_logits: Tensor,
    lr_bias: Tensor,
    base_lr: float,
    *,
    pdl: bool = False,
    slots: Tensor | None = None,
    sequences: Packed | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (q, k, lr): q, k [B, T, H, D] with RoPE, in x's dtype, and lr [B, T, H] float32.

    x [B, T, C]: input of both convolutions. x and lr_logits can be slices of columns of one wider tensor.
    lr_logits [B, T, H], lr_bias [H]: lr = base_lr * sigmoid(lr_logits + lr_bias) / D.
    cache [B, 3, C]: each sequence's last three inputs, oldest first, replaced in place.
    slots [B], only with T = 1: sequence b uses cache[slots[b]]. The cache may have any size and stride in dimension 0.
    sequences (B = 1): layout of T tokens. Sequence s uses cache[sequences.slots[s]], and reads zeros if its start is 0.
    conv_q, conv_k: weight [C, 1, 4] and bias [C] of each convolution. rope: cos and sin [m, D/2] float32.
    position [S] or [S, H], for S sequences: number of earlier tokens of each sequence, or that number modulo m.
    pdl: use programmatic dependent launch. Only x, rope, lr_logits and lr_bias are read after earlier launches end.
    Sums are float32; q and k are rounded once, after RoPE. Raises ValueError on a wrong shape, dtype, stride or device.
    """
    (B, T, C), (m, pairs), H = x.shape, rope[0].shape, lr_logits.shape[-1]
    for name, each in (("x", x), ("lr_logits", lr_logits)):
        in_rows = each.shape[0] <= 1 or each.stride(0) == each.shape[1] * each.stride(1)
        if each.numel() and not (in_rows and each.stride(2) == 1):
            raise ValueError(f"{name} has strides {each.stride()}: must be columns of one contiguous tensor")
    check_shape("lr_logits", lr_logits, (B, T, H))
    check_parameter("lr_bias", lr_bias, (H,))
    count = B if sequences is None else len(sequences.slots)
    check_shape("position", position, (count, H) if position.ndim == 2 else (count,))
    check_choice("position.dtype", position.dtype, (torch.int32, torch.int64))
    _check_cache(cache, slots, sequences, (B, T, C))
    if H * 2 * pairs != C:
        raise ValueError(f"x has {C} columns: must be {H * 2 * pairs}, for {H} heads of {2 * pairs} channels (rope)")
    for name, table in (("rope's cos", rope[0]), ("rope's sin", rope[1])):
        check_parameter(name, table, (m, pairs))
        check_choice(f"{name}.dtype", table.dtype, (torch.float32,))
    for name, (weight, bias) in (("conv_q", conv_q), ("conv_k", conv_k)):
        check_shape(f"{name}'s weight", weight, (C, 1, TAPS))
        check_parameter(f"{name}'s bias", bias, (C,))
    if conv_k[0].stride() != conv_q[0].stride():
        raise ValueError(f"conv_k's weight has strides {conv_k[0].stride()}: must be conv_q's, {conv_q[0].stride()}")
    others = {"conv_q": conv_q[0], "conv_k": conv_k[0], "conv_q's bias": conv_q[1], "conv_k's bias": conv_k[1]}
    others |= {"rope's cos": rope[0], "rope's sin": rope[1], "position": position, "lr_bias": lr_bias}
    check_devices(x=x, cache=cache, lr_logits=lr_logits, **others)
    q, k = (torch.empty(B, T, H, 2 * pairs, device=x.device, dtype=x.dtype) for _ in range(2))
    lr = torch.empty(B, T, H, device=x.device, dtype=torch.float32)
    if not x.numel():
        return q, k, lr
    before, after, chunks, where = _layout(cache, B, T, slots, sequences)
    block = min(BLOCK, triton.next_power_of_2(C))
    _query_key[(chunks * triton.cdiv(C, block),)](
        x, before, after, *conv_q, *conv_k, *rope, position, lr_logits, lr_bias, q, k, lr,
        before.stride(0), T if sequences is None else 0, x.stride(1), lr_logits.stride(1), position.stride(0),
        *conv_q[0].stride()[::2], base_lr,
        m=m, H=H, D=2 * pairs, HP=triton.next_power_of_2(H), BLOCK=block, num_warps=1,
        **where, **dependent_launch(pdl),
    )  # fmt: skip
    if after is not cache:
        cache.copy_(after)
    return q, k, lr


def _check_cache(cache: Tensor, slots: Tensor | None, sequences: Packed | None, shape: tuple[int, int, int]) -> None:
    B, T, C = shape
    if slots is None and sequences is None:
        check_parameter("cache", cache, (B, TAPS - 1, C))
        return
    check_parameter("cache[0]", cache[0], (TAPS - 1, C))
    if sequences is not None and (B != 1 or slots is not None):
        raise ValueError("sequences: packed tokens must have batch 1, and `slots` must be None")
    if slots is not None:
        check_shape("slots", slots, (B,))
        if T != 1:
            raise ValueError(f"slots: takes one token per sequence, but there are {T}")


def _layout(
    cache: Tensor, batch: int, tokens: int, slots: Tensor | None, sequences: Packed | None
) -> tuple[Tensor, Tensor, int, dict[str, Any]]:
    """Return (cache to read, cache to write, number of token chunks, other kernel arguments).

    The caches are one tensor only for unpacked sequences of one token: the programs of several chunks would race.
    """
    if sequences is None:
        chunk = min(CHUNK, triton.next_power_of_2(tokens))
        after = cache if tokens == 1 else torch.empty_like(cache)
        where = {"CHUNK": chunk, "slots": slots, "SLOTS": slots is not None}
        return cache, after, batch * triton.cdiv(tokens, chunk), where
    where = {"cu_seqlens": sequences.cu_seqlens, "starts": sequences.start, "chunks": sequences.chunks}
    where |= {"CHUNK": CHUNK, "slots": sequences.slots, "SLOTS": False, "after_stride": cache.stride(0), "PACKED": True}
    return cache.index_select(0, sequences.slots), cache, len(sequences.chunks), where


@jit
def _rounded_rms_norm(row, weight, C: tl.constexpr, eps):
    return rms_normed(row.to(tl.float32), weight, C, eps).to(row.dtype).to(tl.float32)


@jit
def _taps(weight, channel, valid, weight_stride, tap_stride):
    """Return (w0, w1, w2, w3) in float32: the channels' taps for the inputs 0, 1, 2 and 3 tokens back."""
    at = weight + channel * weight_stride
    w3 = tl.load(at, mask=valid, other=0).to(tl.float32)
    w2 = tl.load(at + tap_stride, mask=valid, other=0).to(tl.float32)
    w1 = tl.load(at + 2 * tap_stride, mask=valid, other=0).to(tl.float32)
    w0 = tl.load(at + 3 * tap_stride, mask=valid, other=0).to(tl.float32)
    return w0, w1, w2, w3


@jit
def _load_cache(at, valid, C: tl.constexpr):
    r3 = tl.load(at, mask=valid, other=0, cache_modifier=".cg")
    r2 = tl.load(at + C, mask=valid, other=0, cache_modifier=".cg")
    r1 = tl.load(at + 2 * C, mask=valid, other=0, cache_modifier=".cg")
    return r3, r2, r1


@jit
def _packed_chunk(cu_seqlens, chunks, chunk):
    """Return a chunk's (sequence s, offset in s, index of token 0 of s, length of s)."""
    seq = tl.load(chunks + 2 * chunk).to(tl.int64)
    first = tl.load(chunks + 2 * chunk + 1)
    token = tl.load(cu_seqlens + seq)
    return seq, first, token.to(tl.int64), tl.load(cu_seqlens + seq + 1) - token


@jit
def _residual_convolution(
    h, cache, after, norm, weight, bias, next_norm, added, normed, cache_stride, T,
    weight_stride, tap_stride, eps, slots,
    C: tl.constexpr, CP: tl.constexpr, CHUNK: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr,
    cu_seqlens=None, starts=None, chunks=None, after_stride=0, PACKED: tl.constexpr = False,
):  # fmt: skip
    """Compute up to CHUNK tokens of one sequence. The module's docstring defines the arguments."""
    let_next_begin(PDL)
    rc = tl.arange(0, CP)
    valid = rc < C
    cached = valid
    if PACKED:
        seq, first, origin, T = _packed_chunk(cu_seqlens, chunks, tl.program_id(0))
        if first >= T:
            return
        at = origin * C + rc
        cached = valid & (tl.load(starts + seq) > 0)
        cache_at = seq * cache_stride + rc
        after_at = tl.load(slots + seq).to(tl.int64) * after_stride + rc
    else:
        per_sequence = tl.cdiv(T, CHUNK)
        seq = (tl.program_id(0) // per_sequence).to(tl.int64)
        first = (tl.program_id(0) % per_sequence) * CHUNK
        at = seq * T * C + rc
        cache_at = slot_of(slots, seq, SLOTS) * cache_stride + rc
        after_at = cache_at
    gamma = tl.load(norm + rc, mask=valid, other=0).to(tl.float32)
    next_gamma = tl.load(next_norm + rc, mask=valid, other=0).to(tl.float32)
    shift = tl.load(bias + rc, mask=valid, other=0).to(tl.float32)
    w0, w1, w2, w3 = _taps(weight, rc, valid, weight_stride, tap_stride)
    if first == 0:
        r3, r2, r1 = _load_cache(cache + cache_at, cached, C)
        x3, x2, x1 = r3.to(tl.float32), r2.to(tl.float32), r1.to(tl.float32)
        wait_for_previous(PDL)
        next_row = tl.load(h + at + first * C, mask=valid, other=0)
    else:
        wait_for_previous(PDL)
        next_row = tl.load(h + at + first * C, mask=valid, other=0)
        r3 = tl.load(h + at + (first - 3) * C, mask=valid, other=0)
        r2 = tl.load(h + at + (first - 2) * C, mask=valid, other=0)
        r1 = tl.load(h + at + (first - 1) * C, mask=valid, other=0)
        x3 = _rounded_rms_norm(r3, gamma, C, eps)
        x2 = _rounded_rms_norm(r2, gamma, C, eps)
        x1 = _rounded_rms_norm(r1, gamma, C, eps)
    for i in range(CHUNK):
        t = first + i
        if t < T:
            row = next_row
            next_row = tl.load(h + at + (t + 1) * C, mask=valid & (i + 1 < CHUNK) & (t + 1 < T), other=0)
            x0 = _rounded_rms_norm(row, gamma, C, eps)
            total = (row.to(tl.float32) + w0 * x0 + w1 * x1 + w2 * x2 + w3 * x3 + shift).to(h.dtype.element_ty)
            tl.store(added + at + t * C, total, mask=valid)
            tl.store(normed + at + t * C, rms_normed(total.to(tl.float32), next_gamma, C, eps), mask=valid)
            x3, x2, x1 = x2, x1, x0
    if first + CHUNK >= T:
        tl.debug_barrier()  # one token replaces the cache in place: wait until every thread has read it
        tl.store(after + after_at, x3, mask=valid)
        tl.store(after + after_at + C, x2, mask=valid)
        tl.store(after + after_at + 2 * C, x1, mask=valid)


@jit
def _rotate(y, cos, sin, BLOCK: tl.constexpr):
    even, odd = tl.split(tl.reshape(y, (BLOCK // 2, 2)))
    return tl.reshape(tl.join(even * cos - odd * sin, odd * cos + even * sin), (BLOCK,))


@jit
def _query_key(
    x, cache, after, weight_q, bias_q, weight_k, bias_k, rope_cos, rope_sin, position, lr_logits, lr_bias, q, k, lr,
    cache_stride, T, x_stride, logit_stride, position_stride, weight_stride, tap_stride, base_lr, slots,
    m: tl.constexpr, H: tl.constexpr, D: tl.constexpr, HP: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
    SLOTS: tl.constexpr, PDL: tl.constexpr,
    cu_seqlens=None, starts=None, chunks=None, after_stride=0, PACKED: tl.constexpr = False,
):  # fmt: skip
    """Compute BLOCK channels of up to CHUNK tokens. The module's docstring defines the arguments."""
    let_next_begin(PDL)
    C: tl.constexpr = H * D
    BLOCKS: tl.constexpr = (C + BLOCK - 1) // BLOCK
    block, chunk = tl.program_id(0) % BLOCKS, tl.program_id(0) // BLOCKS
    channel = block * BLOCK + tl.arange(0, BLOCK)
    valid = channel < C
    cached = valid
    pair = (block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)) % (D // 2)
    if PACKED:
        seq, first, origin, T = _packed_chunk(cu_seqlens, chunks, chunk)
        if first >= T:
            return
        row = origin + first
        cached = valid & (tl.load(starts + seq) > 0)
        cache_at = seq * cache_stride + channel
        after_at = tl.load(slots + seq).to(tl.int64) * after_stride + channel
    else:
        per_sequence = tl.cdiv(T, CHUNK)
        seq, first = (chunk // per_sequence).to(tl.int64), (chunk % per_sequence) * CHUNK
        row = seq * T + first
        cache_at = slot_of(slots, seq, SLOTS) * cache_stride + channel
        after_at = cache_at
    at = x + row * x_stride + channel
    q0, q1, q2, q3 = _taps(weight_q, channel, valid, weight_stride, tap_stride)
    k0, k1, k2, k3 = _taps(weight_k, channel, valid, weight_stride, tap_stride)
    shift_q = tl.load(bias_q + channel, mask=valid, other=0).to(tl.float32)
    shift_k = tl.load(bias_k + channel, mask=valid, other=0).to(tl.float32)
    start = tl.load(position + seq * position_stride, cache_modifier=".cg").to(tl.int32) + first
    if first == 0:
        r3, r2, r1 = _load_cache(cache + cache_at, cached, C)
        wait_for_previous(PDL)
        next_row = tl.load(at, mask=valid, other=0)
    else:
        wait_for_previous(PDL)
        next_row = tl.load(at, mask=valid, other=0)
        r3 = tl.load(at - 3 * x_stride, mask=valid, other=0)
        r2 = tl.load(at - 2 * x_stride, mask=valid, other=0)
        r1 = tl.load(at - x_stride, mask=valid, other=0)
    x3, x2, x1 = r3.to(tl.float32), r2.to(tl.float32), r1.to(tl.float32)
    for i in range(CHUNK):
        if first + i < T:
            x0 = next_row.to(tl.float32)
            next_row = tl.load(at + (i + 1) * x_stride, mask=valid & (i + 1 < CHUNK) & (first + i + 1 < T), other=0)
            angle = (start + i) % m * (D // 2) + pair
            cos, sin = tl.load(rope_cos + angle), tl.load(rope_sin + angle)
            out = (row + i) * C + channel
            rotated = _rotate(q0 * x0 + q1 * x1 + q2 * x2 + q3 * x3 + shift_q, cos, sin, BLOCK)
            tl.store(q + out, rotated, mask=valid)
            rotated = _rotate(k0 * x0 + k1 * x1 + k2 * x2 + k3 * x3 + shift_k, cos, sin, BLOCK)
            tl.store(k + out, rotated, mask=valid)
            x3, x2, x1 = x2, x1, x0
    if first + CHUNK >= T:
        tl.debug_barrier()  # the cache may be replaced in place, as in `_residual_convolution`
        tl.store(after + after_at, x3, mask=valid)
        tl.store(after + after_at + C, x2, mask=valid)
        tl.store(after + after_at + 2 * C, x1, mask=valid)
    if block == 0:
        token, head = tl.arange(0, CHUNK)[:, None], tl.arange(0, HP)[None, :]
        inside = (first + token < T) & (head < H)
        logit = tl.load(lr_logits + (row + token) * logit_stride + head, mask=inside, other=0).to(tl.float32)
        logit += tl.load(lr_bias + head, mask=head < H, other=0)
        tl.store(lr + (row + token) * H + head, base_lr * tl.sigmoid(logit) / D, mask=inside)
