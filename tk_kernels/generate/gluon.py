"""Shared code of kernels in Gluon, Triton's dialect with explicit layouts."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def widen(x):
    """Convert 16-bit x to float32; each bfloat16 number takes one instruction."""
    if x.dtype == gl.bfloat16:
        asm: gl.constexpr = "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;"
        x = gl.inline_asm_elementwise(asm, "=r,=r,r", [x], dtype=gl.float32, is_pure=True, pack=2)
    return x.to(gl.float32)


@gluon.jit
def all_loads_before(position):
    """Issue all loads above this call before waiting for any value except `position`.

    The assembler would move conversions of loaded values up between the loads, even across a barrier. This call is a
    branch on `position` that is never taken, and conversions do not move across a branch.
    """
    asm: gl.constexpr = "{ .reg .pred p; setp.lt.s32 p, $1, 0; @p trap; mov.b32 $0, 0; }"
    gl.inline_asm_elementwise(asm, "=r,r", [position], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def narrow(x, dtype: gl.constexpr):
    """Round float32 x to the 16-bit `dtype`; two bfloat16 numbers take one instruction."""
    if dtype == gl.bfloat16:
        asm: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;"
        return gl.inline_asm_elementwise(asm, "=r,r,r", [x], dtype=gl.bfloat16, is_pure=True, pack=2)
    return x.to(dtype)
