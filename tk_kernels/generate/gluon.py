"""What the kernels in Gluon, Triton's dialect with explicit layouts, share: 16 bits, order, short convolutions."""
# mypy: allow-untyped-defs
# (Triton reads the annotations of kernels, and knows no types but gl.constexpr)

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def wide(x):
    """16 bits to float32; bfloat16 two at a time in two instructions, where the compiler takes three."""
    if x.dtype == gl.bfloat16:
        asm: gl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        x = gl.inline_asm_elementwise(asm, "=r,=r,r", [x], dtype=gl.float32, is_pure=True, pack=2)
    return x.to(gl.float32)


@gluon.jit
def all_loads_before():
    """Ask for all that is loaded above before anything waits: else the assembler puts loads off to their first use."""
    gl.inline_asm_elementwise("bar.warp.sync 0xffffffff; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def narrow(x, dtype: gl.constexpr):
    """float32 to 16 bits, rounded to nearest, two at a time."""
    if dtype == gl.bfloat16:
        asm: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;"
        return gl.inline_asm_elementwise(asm, "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2)
    return x.to(dtype)


@gluon.jit
def swapped(x):
    """x [..., N] float32 with neighbours 2i and 2i + 1 exchanged, in a layout whose threads have both."""
    asm: gl.constexpr = "mov.b32 $0, $3; mov.b32 $1, $2;"
    return gl.inline_asm_elementwise(asm, "=r,=r,r,r", [x], dtype=gl.float32, is_pure=True, pack=2)


@gluon.jit
def load_taps(weight, bias, channel, weight_stride, tap_stride):
    """A convolution's weights of the inputs 3, 2, 1 and 0 tokens back, and its bias, as stored."""
    at = weight + channel * weight_stride
    w3 = gl.load(at)
    w2 = gl.load(at + tap_stride)
    w1 = gl.load(at + 2 * tap_stride)
    w0 = gl.load(at + 3 * tap_stride)
    return w3, w2, w1, w0, gl.load(bias + channel)


@gluon.jit
def load_last_inputs(at, C: gl.constexpr):
    """The inputs 3, 2 and 1 tokens back, past the L1, as they are read once."""
    x3 = gl.load(at, cache_modifier=".cg")
    x2 = gl.load(at + C, cache_modifier=".cg")
    x1 = gl.load(at + 2 * C, cache_modifier=".cg")
    return x3, x2, x1


@gluon.jit
def store_last_inputs(at, C: gl.constexpr, last, x):
    """The inputs that the next token finds 3, 2 and 1 tokens back; x is this one's."""
    gl.store(at, last[1])
    gl.store(at + C, last[2])
    gl.store(at + 2 * C, x)


@gluon.jit
def convolved(last, x, taps, cos, sin):
    """One output of a convolution with RoPE, summed in float32, rounded once to x's type and float32 again."""
    sums = taps[3].to(gl.float32) * x.to(gl.float32) + taps[2].to(gl.float32) * last[2].to(gl.float32)
    sums += taps[1].to(gl.float32) * last[1].to(gl.float32) + taps[0].to(gl.float32) * last[0].to(gl.float32)
    sums += taps[4].to(gl.float32)
    return (sums * cos + swapped(sums) * sin).to(x.dtype).to(gl.float32)
