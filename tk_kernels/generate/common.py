"""Shared code of the generate kernels: precisions of states, launch arguments, Triton helpers."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

import torch
import triton
import triton.language as tl
from triton import jit

from tk_kernels.build import hidden, unsupported_gpu

Launch = TypeVar("Launch", bound=Callable[..., Any])
SM90 = "sm_90"  # prefix of `section_name` for kernels in Gluon (generate_sm90.py)


class Precision(NamedTuple):
    weights: torch.dtype
    rows: torch.dtype  # cached rows
    planes: bool  # whether a second tensor holds the low 16 bits of each weight (`split_planes`)


PRECISIONS = {
    "float32": Precision(torch.float32, torch.float32, False),
    "planes": Precision(torch.bfloat16, torch.bfloat16, True),
    "bfloat16": Precision(torch.bfloat16, torch.bfloat16, False),
    "float16": Precision(torch.float16, torch.float16, False),
}


def on_its_device(launch: Launch) -> Launch:
    """Decorate a launch function so that the device of its first argument is current while it runs."""

    @wraps(launch)
    def launched(x: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        with torch.cuda.device_of(x):
            return launch(x, *arguments, **named)

    return cast(Launch, launched)


def available() -> str:
    """Return why the Triton kernels cannot run here, or ""."""
    return "" if triton.knobs.runtime.interpret else unsupported_gpu(lambda found: found >= (8, 0), "8.0 or higher")


def split_planes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Split float32 x into (bfloat16 high, int16 low); `join_planes` restores x except NaNs.

    `high` is x rounded to nearest, ties away from zero, so the remainder always fits 16 signed bits.
    All NaNs become 0x7FC00000: a GPU's NaN, 0x7FFFFFFF, would round to -0.
    """
    x = x.float().contiguous()
    bits = x.view(torch.int32).masked_fill(x.isnan(), 0x7FC00000)
    high = (bits + 0x8000 >> 16).to(torch.int16).view(torch.bfloat16)
    return high, (bits & 0xFFFF).to(torch.int16)


def join_planes(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    bits = (high.view(torch.int16).to(torch.int32) << 16) + low.to(torch.int32)
    return bits.view(torch.float32)


def to_precision(x: torch.Tensor, precision: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return x in a state's `precision`: (tensor, None), or for "planes" (high plane, low plane)."""
    if PRECISIONS[precision].planes:
        return split_planes(x)
    return x.to(PRECISIONS[precision].weights, copy=True).contiguous(), None


PIECE_BYTES = 1 << 28  # most bytes that `by_sequences` passes to one call, if they hold a sequence


def by_sequences(function: Callable[..., tuple[torch.Tensor | None, ...]], *given: torch.Tensor) -> Any:
    """Call `function` on slices of tensors `given` [B, ...] along B; concatenate its outputs.

    A call gets as many sequences as fit in 256 MiB, at least one. Returns a tuple; outputs that are None stay None.
    """
    batch, size = len(given[0]), sum(x.numel() * x.element_size() for x in given)
    step = max(1, batch * PIECE_BYTES // max(1, size))
    outputs: list[torch.Tensor | None] = []
    for first in range(0, max(1, batch), step):
        made = function(*(x[first : first + step] for x in given))
        outputs = outputs or [None if x is None else x.new_empty(batch, *x.shape[1:]) for x in made]
        for output, part in zip(outputs, made, strict=True):
            if output is not None and part is not None:
                output[first : first + step] = part
    return tuple(outputs)


def float_copy(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32, copy=True).contiguous()


def to_float32(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(x.float().contiguous() for x in tensors)


def rope_table(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return the kernels' RoPE table [m, 2, D] float32, from cos and sin [m, D/2].

    For each of the m positions, row 0 has cos_i in columns 2i and 2i+1. Row 1 has -sin_i in column 2i, sin_i in 2i+1.
    """
    return torch.stack((cos.repeat_interleave(2, 1), torch.stack((-sin, sin), 2).flatten(1)), 1).float()


def dot_type(rows: torch.Tensor) -> Any:
    """Return Triton's dtype for matmul operands: the dtype of `rows`, or float32 in Triton's interpreter."""
    if triton.knobs.runtime.interpret:
        return tl.float32
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[rows.dtype]


def compiles_narrow_dots() -> bool:
    """Whether the installed Triton compiles matmuls with 16 columns here."""
    old = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 8)  # fails for compute capability 10.x
    return not old or triton.knobs.runtime.interpret or torch.cuda.get_device_capability()[0] != 10


def runs_sm90(device: torch.device) -> bool:
    return not hidden() and device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


def dependent_launch(pdl: bool) -> dict[str, bool]:
    """Return Triton's launch arguments: with PDL if `pdl`, the GPU and TTT_BENCH_ARCH allow it.

    PDL (programmatic dependent launch, since Hopper): the kernel starts early, reads parameters and state, then waits
    for earlier launches. Between a launch that writes parameters or state and the kernel, run another one without PDL.
    """
    if not pdl or triton.knobs.runtime.interpret or hidden() or torch.cuda.get_device_capability() < (9, 0):
        return {"PDL": False}
    return {"PDL": True, "launch_pdl": True}


def section_name(suits_sm90: bool, device: torch.device) -> str:
    """Return the name under which `tuning` looks up launch settings: the GPU's name, or "cpu".

    If a Gluon kernel will run, "sm_90 " precedes the GPU's name. suits_sm90: whether a Gluon kernel supports the state.
    """
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return f"{SM90} {gpu}" if suits_sm90 and runs_sm90(device) else gpu


# Kernel helpers. Rows are padded to a power of two; `valid` is the mask of real columns; padding stays 0.


@jit
def let_next_begin(PDL: tl.constexpr):
    """With PDL, let the next dependent launch start once every program has called this function or ended."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def wait_for_previous(PDL: tl.constexpr):
    """With PDL, wait until earlier launches end; call before reading their outputs or writing."""
    if PDL:
        tl.extra.cuda.gdc_wait()


@jit
def slot_of(slots, seq, SLOTS: tl.constexpr):
    """Return the index of sequence `seq` in the state's tensors: slots[seq] with SLOTS, otherwise `seq`."""
    if SLOTS:
        seq = tl.load(slots + seq).to(tl.int64)
    return seq


@jit
def join(high, low):
    """Return float32 numbers from their bfloat16 high and int16 low planes, the inverse of `split_planes`."""
    bits = (high.to(tl.int16, bitcast=True).to(tl.int32) << 16) + low.to(tl.int32)
    return bits.to(tl.float32, bitcast=True)


@jit
def store_weights(weights, low, at, x, mask, PLANES: tl.constexpr):
    """Write the float32 tile x to `weights` at the offsets `at`, in the dtype of `weights`.

    With PLANES, write x's high 16 bits, rounded, to `weights`, and the low 16 bits to `low`, at the same offsets.
    """
    if PLANES:
        bits = tl.where(x == x, x.to(tl.int32, bitcast=True), 0x7FC00000)
        high = ((bits + 0x8000) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
        tl.store(weights + at, high, mask=mask)
        tl.store(low + at, bits.to(tl.int16), mask=mask)
    else:
        tl.store(weights + at, x.to(weights.dtype.element_ty), mask=mask)


@jit
def load_weights(weights, low, at, mask, PLANES: tl.constexpr):
    """Load weights at the offsets `at` as float32; with PLANES, `low` holds their low 16 bits."""
    x = tl.load(weights + at, mask=mask, other=0)
    if PLANES:
        x = join(x, tl.load(low + at, mask=mask, other=0))
    return x.to(tl.float32)


@jit
def load_token(x, at, rd, valid, ROPE: tl.constexpr):
    """Load the channels `rd` of one row of Q or K at x + at; return (row, pair) for `rotate`.

    With ROPE, `pair` holds channels rd ^ 1, which RoPE combines with `rd`. Otherwise it is `row`.
    `rotate` applies RoPE later, because a barrier here would delay loads.
    """
    row = tl.load(x + at + rd, mask=valid, other=0)
    pair = row
    if ROPE:
        pair = tl.load(x + at + (rd ^ 1), mask=valid, other=0)
    return row, pair


@jit
def load_angles(rope, position, rd, valid, D: tl.constexpr, ROPE: tl.constexpr):
    """Load (cos, sin) of `position` at channels `rd` from a `rope_table`; without ROPE, (0, 0)."""
    cos, sin = 0.0, 0.0
    if ROPE:
        cos = tl.load(rope + position * (2 * D) + rd, mask=valid, other=0)
        sin = tl.load(rope + position * (2 * D) + D + rd, mask=valid, other=0)
    return cos, sin


@jit
def rotate(row, pair, cos, sin, ROPE: tl.constexpr):
    """Return one row of Q or K as float32, after RoPE if ROPE is set.

    row, pair: the results of `load_token`. cos, sin: those of `load_angles` for the token's position.
    A rotated row is rounded to the dtype of `row` before its conversion to float32.
    """
    if ROPE:
        row = (row.to(tl.float32) * cos + pair.to(tl.float32) * sin).to(row.dtype)
    return row.to(tl.float32)


@jit
def learning_rate(rate, base_lr, D: tl.constexpr, LOGITS: tl.constexpr):
    """Return a learning rate in float32: `rate`, or with LOGITS base_lr * sigmoid(rate) / D."""
    rate = rate.to(tl.float32)
    if LOGITS:
        rate = base_lr * tl.sigmoid(rate) / D
    return rate


@jit
def columns(x, FIRST: tl.constexpr, DOT: tl.constexpr):
    """Expand x [N] to a matmul operand [N, 16] of dtype DOT, for w @ x on tensor cores.

    Column FIRST is x rounded to DOT, the next is the rounding error, others are 0. The matmul's columns sum to w @ x.
    """
    high = x.to(DOT)
    rest = (x - high.to(tl.float32)).to(DOT)
    column = tl.arange(0, 16)[None, :]
    return tl.where(column == FIRST, high[:, None], tl.where(column == FIRST + 1, rest[:, None], 0.0).to(DOT))


@jit
def normalise(z, valid, D: tl.constexpr):
    """Return (xhat, 1/std) of z [D], with xhat = (z - mean) / std, the biased variance and eps 1e-6."""
    centred = tl.where(valid, z - tl.sum(z, 0) / D, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / D + 1e-6)
    return centred * rstd, rstd


@jit
def ln_l2_grad(z, target, weight, bias, valid, D: tl.constexpr):
    """Return the gradient [D] of 1/2 |LN(z) - target|^2 with respect to z (ttt_layer.md, step 5)."""
    xhat, rstd = normalise(z, valid, D)
    g = (weight * xhat + bias - target) * weight
    grad = (g - tl.sum(g, 0) / D - xhat * (tl.sum(g * xhat, 0) / D)) * rstd
    return tl.where(valid, grad, 0.0)


@jit
def to_float32_again(x):
    if x.dtype == tl.bfloat16:  # with a cast, the compiler could keep an earlier cast in registers
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@jit
def gelu(x):
    """Return GELU(x), tanh approximation: x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@jit
def gelu_grad(x):
    p = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return p + x * p * (1.0 - p) * (1.5957691216057308 * (1.0 + 0.134145 * x * x))
