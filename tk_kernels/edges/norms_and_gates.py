"""Kernels for operations around the TTT kernel: LayerNorm with output gate, RMSNorm, SwiGLU."""

import torch
from torch import Tensor

from tk_kernels.checks import check_devices, check_parameter, check_shape
from tk_kernels.generate.common import (
    dependent_launch,
    gelu,
    jit,
    let_next_begin,
    on_its_device,
    tl,
    triton,
    wait_for_previous,
)

COLUMNS = 2048  # most columns of a SwiGLU row per program


@on_its_device
def norm_gate(z: Tensor, gate: Tensor, weight: Tensor, bias: Tensor, eps: float, *, pdl: bool = False) -> Tensor:
    """Return LayerNorm(z) * gelu_tanh(`gate`) in z's dtype, for z and `gate` [..., C].

    See ttt_layer.md, step 6. weight, bias [C]: for LayerNorm. `gate` can be a slice of a wider tensor's columns.
    pdl: use programmatic dependent launch; the kernel reads `weight` and `bias` before earlier launches end.
    Arithmetic is float32; the result is rounded once. Raises ValueError on a wrong shape, stride or device.
    """
    C = z.shape[-1]
    check_shape("gate", gate, tuple(z.shape))
    check_parameter("weight", weight, (C,))
    check_parameter("bias", bias, (C,))
    check_devices(z=z, gate=gate, weight=weight, bias=bias)
    z, rows = z.contiguous(), _rows("gate", gate)
    out = torch.empty_like(z)
    _norm_gate[(rows.shape[0],)](
        z, rows, weight, bias, out, rows.stride(0), eps,
        C=C, CP=triton.next_power_of_2(C), num_warps=8, **dependent_launch(pdl),
    )  # fmt: skip
    return out


@on_its_device
def rms_norm(x: Tensor, weight: Tensor, eps: float, *, pdl: bool = False) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * weight in x's dtype, for x [..., C] and weight [C].

    pdl: use programmatic dependent launch; the kernel reads `weight` before earlier launches end.
    Arithmetic is float32; the result is rounded once. Raises ValueError on a wrong shape, stride or device.
    """
    C = x.shape[-1]
    check_parameter("weight", weight, (C,))
    check_devices(x=x, weight=weight)
    rows = _rows("x", x)
    out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
    _rms_norm[(rows.shape[0],)](
        rows, weight, out, rows.stride(0), eps, C=C, CP=triton.next_power_of_2(C), num_warps=4, **dependent_launch(pdl)
    )
    return out


@on_its_device
def swiglu(x: Tensor) -> Tensor:
    """Return silu(a) * b, [..., F] in x's dtype, where x [..., 2 F] holds a, then b.

    Arithmetic is float32; the result is rounded once. Raises ValueError on an odd number of columns or a wrong stride.
    """
    if x.shape[-1] % 2:
        raise ValueError(f"x has {x.shape[-1]} columns: must be even")
    rows, F = _rows("x", x), x.shape[-1] // 2
    out = torch.empty(*x.shape[:-1], F, device=x.device, dtype=x.dtype)
    block = min(COLUMNS, triton.next_power_of_2(F))
    _swiglu[(rows.shape[0], triton.cdiv(F, block))](rows, out, rows.stride(0), F=F, BLOCK=block, num_warps=4)
    return out


def _rows(name: str, x: Tensor) -> Tensor:
    if x.stride(-1) != 1:
        raise ValueError(f"{name} has strides {x.stride()}: the last must be 1")
    return x.view(-1, x.shape[-1]) if x.is_contiguous() else x.flatten(0, -2)


@jit
def _norm_gate(z, gate, weight, bias, out, gate_stride, eps, C: tl.constexpr, CP: tl.constexpr, PDL: tl.constexpr):
    let_next_begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    rc = tl.arange(0, CP)
    valid = rc < C
    gamma = tl.load(weight + rc, mask=valid, other=0).to(tl.float32)
    beta = tl.load(bias + rc, mask=valid, other=0).to(tl.float32)
    wait_for_previous(PDL)
    x = tl.load(z + row * C + rc, mask=valid, other=0).to(tl.float32)
    g = tl.load(gate + row * gate_stride + rc, mask=valid, other=0).to(tl.float32)
    centred = tl.where(valid, x - tl.sum(x, 0) / C, 0.0)
    normed = centred * (1.0 / tl.sqrt(tl.sum(centred * centred, 0) / C + eps))
    tl.store(out + row * C + rc, (normed * gamma + beta) * gelu(g), mask=valid)


@jit
def rms_normed(row, weight, C: tl.constexpr, eps):  # row: C channels, then zeros
    return row * (1.0 / tl.sqrt(tl.sum(row * row, 0) / C + eps)) * weight


@jit
def _rms_norm(x, weight, out, x_stride, eps, C: tl.constexpr, CP: tl.constexpr, PDL: tl.constexpr):
    let_next_begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    rc = tl.arange(0, CP)
    valid = rc < C
    gamma = tl.load(weight + rc, mask=valid, other=0).to(tl.float32)
    wait_for_previous(PDL)
    values = tl.load(x + row * x_stride + rc, mask=valid, other=0).to(tl.float32)
    tl.store(out + row * C + rc, rms_normed(values, gamma, C, eps), mask=valid)


@jit
def _swiglu(x, out, x_stride, F: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = column < F
    a = tl.load(x + row * x_stride + column, mask=valid, other=0).to(tl.float32)
    b = tl.load(x + row * x_stride + F + column, mask=valid, other=0).to(tl.float32)
    tl.store(out + row * F + column, a * tl.sigmoid(a) * b, mask=valid)
