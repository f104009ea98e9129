"""GEMMs y = x W^T with few rows of x, optionally fused with a norm before and SwiGLU or a residual after.

Such a GEMM is bound by reading W, so fused operations add little time and save a launch.
For one row of x, or two without an output gate, CUDA cores compute the norm and the GEMM in one kernel.
In other cases, a separate kernel computes the norm, and tensor cores compute the GEMM.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from tk_kernels.checks import check_devices, check_parameter, check_shape
from tk_kernels.edges.norms_and_gates import norm_gate, rms_norm
from tk_kernels.generate.common import (
    dependent_launch,
    dot_type,
    gelu,
    jit,
    let_next_begin,
    on_its_device,
    tl,
    triton,
    wait_for_previous,
)

MANY_OUTPUTS = 4096  # with at least this many, tiles of 64 outputs fill the GPU
# Most rows of x for which these kernels are at least as fast as cuBLAS with separate norm and SwiGLU, on an H100
MOST_ROWS, MOST_ROWS_FEW_OUTPUTS = 64, 32
MAX_CUDA_CORE_ROWS = 2  # most rows of x for the kernel without tensor cores
INPUTS = 2048  # inputs per weight row that a program without tensor cores loads at once
SUMS_PER_PROGRAM = 4  # sums per program without tensor cores: outputs times rows of x
MIN_TILE_ROWS = 16  # least rows of a tile for tensor cores, including padding
SHARED_BYTES = 200_000  # shared memory that the largest tiles need


@dataclass(frozen=True)
class Norm:
    """Norm of the rows of x [..., K] before a GEMM: the argument `before` of `few_rows_gemm`.

    With only `weight` [K], it is RMSNorm. With `bias` [K] and `gate` [..., K], it is LayerNorm times gelu_tanh(`gate`).
    For one row of x, LayerNorm is computed from sums of x and x^2. Its float32 rounding errors then grow with the row's
    mean / standard deviation.
    """

    weight: Tensor
    eps: float
    bias: Tensor | None = None
    gate: Tensor | None = None

    def __call__(self, x: Tensor, *, pdl: bool = False) -> Tensor:
        if self.bias is None or self.gate is None:
            return rms_norm(x, self.weight, self.eps, pdl=pdl)
        return norm_gate(x, self.gate, self.weight, self.bias, self.eps, pdl=pdl)


def fits(x: Tensor, weights: Tensor, *, swiglu: bool = False) -> bool:
    """Whether `suits` accepts the arguments and x is on a GPU with enough shared memory for the kernel."""
    return x.is_cuda and suits(x, weights, swiglu=swiglu) and shared_bytes(x.device) >= SHARED_BYTES


def suits(x: Tensor, weights: Tensor, *, swiglu: bool = False) -> bool:
    """Whether `few_rows_gemm` takes such tensors and is at least as fast as cuBLAS on an H100."""
    most = MOST_ROWS if len(weights) >= MANY_OUTPUTS * (1 + swiglu) else MOST_ROWS_FEW_OUTPUTS
    few = x.shape[-1] <= x.numel() <= most * x.shape[-1]
    laid_out = x.ndim > 1 and x.stride(-1) == 1 and weights.is_contiguous() and _fits_int32_offsets(x)
    return few and laid_out and x.dtype == weights.dtype and x.element_size() == 2


def _fits_int32_offsets(x: Tensor) -> bool:
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) < 1 << 31


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory, in bytes, available to a thread block on the GPU `device`."""
    return triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"]


@on_its_device
def few_rows_gemm(
    x: Tensor,
    weights: Tensor,
    before: Norm | None = None,
    *,
    swiglu: bool = False,
    out: Tensor | None = None,
    pdl: bool = False,
) -> Tensor:
    """Return before(x) W^T [..., N] in x's dtype, for weights W [N, K]; without `before`, x W^T.

    x [..., K]: 1 to 64 rows. before: RMSNorm, or LayerNorm with an output gate (`Norm.gate`).
    out [..., N]: add the result to this tensor in place, and return it. `out` must share no memory with the inputs.
    swiglu: return silu(y Wg^T) * (y Wu^T) with y = before(x); W is [2 N, K], first the rows of Wg, then those of Wu.
        With `swiglu`, neither `out` nor `Norm.gate` is supported.
    pdl: use programmatic dependent launch; the kernel may read W and the norm's parameters before earlier launches end.
    Arithmetic is float32, and the result is rounded once. For three or more rows, or two rows with an output gate, a
    separate kernel computes the norm, and before(x) is rounded to x's dtype.
    Raises ValueError on a wrong shape, dtype, stride or device.
    """
    rows, N = _checked(x, weights, before, swiglu, out)
    R, K = rows.shape
    result = torch.empty(*x.shape[:-1], N, device=x.device, dtype=x.dtype) if out is None else out
    shape = {"K": K, "SWIGLU": swiglu, "ADD": out is not None, **dependent_launch(pdl)}
    # Two rows after an output gate take six sums per weight: tensor cores are faster.
    if R <= MAX_CUDA_CORE_ROWS and (R == 1 or before is None or before.gate is None):
        norm = (None, None, None, 0.0) if before is None else (before.gate, before.weight, before.bias, before.eps)
        gate, weight, bias = (rows if each is None else each for each in norm[:3])  # placeholders, never read
        _few_rows_summed[(triton.cdiv(N, SUMS_PER_PROGRAM // R),)](
            rows, gate, weight, bias, weights, weights[N:], result, N, rows.stride(0), norm[3],
            R=R, INPUTS=min(INPUTS, triton.next_power_of_2(K)), OUTPUTS=SUMS_PER_PROGRAM // R,
            NORMED=before is not None, GATED=norm[0] is not None, num_warps=4, **shape,
        )  # fmt: skip
    else:
        rows = before(x, pdl=pdl).flatten(0, -2) if before is not None else rows
        tile = max(MIN_TILE_ROWS, triton.next_power_of_2(R))
        outputs, inputs, warps = (64, 128, 4) if N >= MANY_OUTPUTS else (16, 256, 2 if tile == MIN_TILE_ROWS else 4)
        _few_rows_product[(triton.cdiv(N, outputs),)](
            rows, weights, weights[N:], result, N, rows.stride(0), R=R, ROWS=tile,
            OUTPUTS=outputs, INPUTS=inputs, DOT=dot_type(rows), STAGES=4, num_warps=warps, **shape,
        )  # fmt: skip
    return result


def _checked(x: Tensor, weights: Tensor, before: Norm | None, swiglu: bool, out: Tensor | None) -> tuple[Tensor, int]:
    *many, K = x.shape
    N, odd = divmod(len(weights), 2) if swiglu else (len(weights), 0)
    if not (many and 1 <= math.prod(many) <= MOST_ROWS) or odd or weights.dtype != x.dtype:
        shapes = f"x {tuple(x.shape)} {x.dtype}, weights {tuple(weights.shape)} {weights.dtype}"
        raise ValueError(f"{shapes}: must be 1 to {MOST_ROWS} rows of one dtype; SwiGLU takes an even len(weights)")
    weight, bias, gate = (before.weight, before.bias, before.gate) if before is not None else (None, None, None)
    if swiglu and (out is not None or gate is not None):
        raise ValueError("swiglu: takes neither `out` nor an output gate")
    if (bias is None) != (gate is None):
        raise ValueError("norm: takes both a bias and an output gate, or neither")
    rows = x.flatten(0, -2)
    norm = {"norm weight": (weight, (K,)), "norm bias": (bias, (K,))}
    for name, (tensor, shape) in ({"weights": (weights, (len(weights), K)), "out": (out, (*many, N))} | norm).items():
        if tensor is not None:
            check_parameter(name, tensor, shape)
    for name, tensor in (("x", x), ("gate", gate)):
        if tensor is not None:
            check_shape(name, tensor.flatten(0, -2), tuple(rows.shape))
            if tensor.stride(-1) != 1 or not _fits_int32_offsets(tensor):
                where = "contiguous in the last dimension and lie within 2^31 elements"
                raise ValueError(f"{name} has strides {tensor.stride()}: must be {where}")
    check_devices(x=x, weights=weights, out=out, gate=gate, **{name: tensor for name, (tensor, _) in norm.items()})
    return rows, N


@jit
def _few_rows_product(
    x, weights, up_weights, out, N, x_stride,
    R: tl.constexpr, K: tl.constexpr, SWIGLU: tl.constexpr, ADD: tl.constexpr, DOT: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute OUTPUTS columns of out [R, N] = x W^T on tensor cores, in steps of INPUTS along K.

    x [R, K], with stride x_stride over rows. weights, up_weights [N, K]: W, and for SWIGLU a second matrix V.
    SWIGLU: compute silu(x W^T) * (x V^T). ADD: add to `out` instead of overwriting it.
    ROWS: R padded to a power of two >= 16. DOT: dtype of the operands. STAGES: pipeline stages of the loads.
    """
    let_next_begin(PDL)
    wait_for_previous(PDL)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, ROWS)
    total = tl.zeros([OUTPUTS, ROWS], tl.float32)
    up = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for first in tl.range(0, K, INPUTS, num_stages=STAGES):
        k = first + tl.arange(0, INPUTS)
        mask = (row < R)[:, None] & (k < K)[None, :]
        operand = tl.trans(tl.load(x + row[:, None] * x_stride + k[None, :], mask=mask, other=0)).to(DOT)
        inside = (n < N)[:, None] & (k < K)[None, :]
        at = n.to(tl.int64)[:, None] * K + k[None, :]
        w = tl.load(weights + at, mask=inside, other=0).to(DOT)
        total = tl.dot(w, operand, total, input_precision="ieee")
        if SWIGLU:
            v = tl.load(up_weights + at, mask=inside, other=0).to(DOT)
            up = tl.dot(v, operand, up, input_precision="ieee")
    if SWIGLU:
        total = total * tl.sigmoid(total) * up
    to = out + row[None, :] * N + n[:, None]
    stored = (row < R)[None, :] & (n < N)[:, None]
    if ADD:
        total += tl.load(to, mask=stored, other=0).to(tl.float32)
    tl.store(to, total, mask=stored)


@jit
def _few_rows_summed(
    x, gate, norm_weight, norm_bias, weights, up_weights, out, N, x_stride, eps,
    R: tl.constexpr, K: tl.constexpr, SWIGLU: tl.constexpr, ADD: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, NORMED: tl.constexpr, GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute OUTPUTS columns of out [R, N] = x W^T on CUDA cores, in steps of INPUTS along K.

    x [R, K], with stride x_stride over rows. weights, up_weights [N, K]: W, and for SWIGLU a second matrix V.
    R: rows, a power of two. SWIGLU: compute silu(x W^T) * (x V^T). ADD: add to `out` instead of overwriting it.
    NORMED: first apply RMSNorm to x, with norm_weight [K] and eps.
    GATED, only for one row: apply LayerNorm times gelu(`gate`) instead; norm_weight, norm_bias, `gate` [K].
    """
    let_next_begin(PDL)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = tl.arange(0, R)
    total = tl.zeros([R, OUTPUTS], tl.float32)
    up = tl.zeros([R, OUTPUTS], tl.float32)
    mean_term = tl.zeros([R, OUTPUTS], tl.float32)
    bias_term = tl.zeros([R, OUTPUTS], tl.float32)
    mean = tl.zeros([R], tl.float32)
    square = tl.zeros([R], tl.float32)
    for first in tl.static_range(0, K, INPUTS):
        k = first + tl.arange(0, INPUTS)
        valid = k < K
        inside = (n < N)[:, None] & valid[None, :]
        at = n.to(tl.int64)[:, None] * K + k[None, :]
        w = tl.load(weights + at, mask=inside, other=0, eviction_policy="evict_first")
        if SWIGLU:
            v = tl.load(up_weights + at, mask=inside, other=0, eviction_policy="evict_first")
        if NORMED:
            scales = tl.load(norm_weight + k, mask=valid, other=0).to(tl.float32)
        if GATED:
            shifts = tl.load(norm_bias + k, mask=valid, other=0).to(tl.float32)
        if first == 0:
            wait_for_previous(PDL)
        for r in tl.static_range(R):
            is_row = row == r
            values = tl.load(x + r * x_stride + k, mask=valid, other=0).to(tl.float32)
            operand = values
            if NORMED:
                factor = scales
                if GATED:  # one row
                    gate_factor = gelu(tl.load(gate + k, mask=valid, other=0).to(tl.float32))
                    factor, shift = factor * gate_factor, shifts * gate_factor
                operand = values * factor
            total += tl.where(is_row[:, None], _matvec(w, operand)[None, :], 0.0)
            if SWIGLU:
                up += tl.where(is_row[:, None], _matvec(v, operand)[None, :], 0.0)
            # Compute the norm's sums after the weights' sums: before, they would delay each load of a weight.
            if GATED:
                mean_term += tl.where(is_row[:, None], _matvec(w, factor)[None, :], 0.0)
                bias_term += tl.where(is_row[:, None], _matvec(w, shift)[None, :], 0.0)
                mean += tl.where(is_row, tl.sum(values, 0) / K, 0.0)
            if NORMED:
                square += tl.where(is_row, tl.sum(values * values, 0) / K, 0.0)
    if NORMED:
        scale = 1.0 / tl.sqrt(tl.maximum(square - mean * mean, 0.0) + eps)  # applied last: loads of W need not wait
        total = (total - mean_term * mean[:, None]) * scale[:, None] + bias_term
        up = up * scale[:, None]
    if SWIGLU:
        total = total * tl.sigmoid(total) * up
    to = out + row[:, None] * N + n[None, :]
    stored = (n < N)[None, :]
    if ADD:
        total += tl.load(to, mask=stored, other=0).to(tl.float32)
    tl.store(to, total, mask=stored)


@jit
def _matvec(w, x):
    return tl.sum(w.to(tl.float32) * x[None, :], 1)
