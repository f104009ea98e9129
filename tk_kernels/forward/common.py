"""Shared by the portable forward kernels: where Triton runs them, launch shapes, RoPE, LayerNorm sums, GELU.

They run on CUDA GPUs of compute capability 8.0 or higher, and in Triton's interpreter.
"""
# mypy: allow-untyped-defs
# (Triton reads the annotations of kernels, and knows no types but tl.constexpr)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tk_kernels.build import OTHER_GPU
from tk_kernels.generate import common
from tk_kernels.generate.common import dot_type, jit, tl, triton

LEAST_CAPABILITY = (8, 0)
MOST_HEAD_DIM = 128
MINI_BATCHES = tuple(range(4, 65))
HALF = (torch.bfloat16, torch.float16)  # of tokens on a GPU; the interpreter takes float32 too
LEAST_ROWS = 16  # of a tile that tensor cores multiply
# float16 gradients are kept times this, so that they stay clear of its smallest normal numbers.
GRADIENT_SCALE = {torch.float16: 1024.0}


def available() -> str:
    """Why the portable kernels cannot run here, in one sentence; empty when they can."""
    reason = common.available()
    if reason or triton.knobs.runtime.interpret:
        return reason
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < LEAST_CAPABILITY:
        found = torch.cuda.get_device_name()
        return f"{OTHER_GPU} {found} (compute capability {major}.{minor}), and the kernels need 8.0 or higher"
    return ""


def processors(q: Tensor) -> int:
    """Streaming multiprocessors of the tensor's GPU."""
    return torch.cuda.get_device_properties(q.device).multi_processor_count


def tile(q: Tensor, mini_batch: int) -> dict[str, Any]:
    """The compile-time arguments of a forward kernel that follow from q [B, T, H, D] and the mini-batch."""
    head_dim = q.shape[3]
    return {
        "m": mini_batch,
        "M": max(LEAST_ROWS, triton.next_power_of_2(mini_batch)),
        "D": head_dim,
        "DP": max(LEAST_ROWS, triton.next_power_of_2(head_dim)),
        "DOT": dot_type(q),
        "UP": GRADIENT_SCALE.get(q.dtype, 1.0),
        # The interpreter's loops take no end that is an argument of a kernel.
        "INTERPRETED": q.shape[1] if triton.knobs.runtime.interpret else 0,
    }


def rotated(x: Tensor, mini_batch: int) -> Tensor:
    """RoPE (theta 10000, position in the mini-batch) of x [B, T, H, D], that start at a mini-batch."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    batch, tokens, heads, head_dim = x.shape
    rows, pairs = 16, triton.next_power_of_2(head_dim // 2)
    grid = (triton.cdiv(tokens, rows), batch * heads)
    _rotate[grid](x, out, tokens, heads, *x.stride()[:3], m=mini_batch, D=head_dim, P=pairs, R=rows)
    return out


@jit
def _rotate(
    x, out, T, H, x_batch, x_token, x_head,
    m: tl.constexpr, D: tl.constexpr, P: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """One head of R tokens: pairs (2i, 2i+1) by position * 10000^(-2i/D)."""
    t = (tl.program_id(0) * R + tl.arange(0, R)[:, None]).to(tl.int64)  # times a stride, it can exceed 32 bits
    seq, head = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    pair = tl.arange(0, P)[None, :]
    inside = (t < T) & (pair < D // 2)
    source = x + seq * x_batch + t * x_token + head * x_head + 2 * pair
    even = tl.load(source, mask=inside, other=0).to(tl.float32)
    odd = tl.load(source + 1, mask=inside, other=0).to(tl.float32)
    angle = (t % m).to(tl.float32) * tl.exp2(pair.to(tl.float32) * (-2.0 * 13.287712379549449 / D))  # log2(10000)
    cos, sin = tl.cos(angle), tl.sin(angle)
    target = out + ((seq * T + t) * H + head) * D + 2 * pair
    tl.store(target, (even * cos - odd * sin).to(out.dtype.element_ty), mask=inside)
    tl.store(target + 1, (odd * cos + even * sin).to(out.dtype.element_ty), mask=inside)


@jit
def add_two(a1, a2, b1, b2):
    """Sum two rows in one reduction: one exchange between warps."""
    return a1 + b1, a2 + b2


@jit
def add_six(a1, a2, a3, a4, a5, a6, b1, b2, b3, b4, b5, b6):
    """Sum six rows in one reduction: one exchange between warps."""
    return a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6


@jit
def normalization(s0, s1, D: tl.constexpr):
    """Mean and 1/std of rows, from the sums of z and z^2."""
    mean = s0 * (1.0 / D)
    return mean, tl.rsqrt(tl.maximum(s1 * (1.0 / D) - mean * mean, 0.0) + 1e-6)


@jit
def gradient_coefficients(s0, s1, s2, s3, s4, s5, weight_squared, D: tl.constexpr):
    """Mean, 1/std, mean(g) and mean(g * xhat) / std of rows z, from sums over their elements.

    With u = weight^2 z, offset o = weight (bias - R) and c = z - mean: g = weight^2 c / std + o. The sums: s0 of z,
    s1 of z^2, s2 of u, s3 of u z, s4 of o z, s5 of o. weight_squared: the sum of weight^2.
    """
    mean, rstd = normalization(s0, s1, D)
    u = s2 - mean * weight_squared  # the sums of weight^2 c, and of weight^2 c^2
    uc = s3 - mean * (s2 + u)
    return mean, rstd, (rstd * u + s5) * (1.0 / D), rstd * rstd * (rstd * uc + s4 - mean * s5) * (1.0 / D)


@jit
def tanh(x, INTERPRETED: tl.constexpr):
    """tanh in one instruction, exact to 11 bits, as bfloat16 and float16 operands need."""
    if INTERPRETED:
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@jit
def gelu_tanh(x, INTERPRETED: tl.constexpr):
    """GELU in its tanh form, and the tanh."""
    th = tanh(x * (0.7978845608028654 + 0.035677408136300125 * x * x), INTERPRETED)
    half = 0.5 * x
    return half + half * th, th


@jit
def gelu_slope(x, th):
    """Derivative of GELU at x, from its tanh."""
    return 0.5 + 0.5 * th + 0.5 * x * (1.0 - th * th) * (0.7978845608028654 + 0.10703222440890037 * x * x)
