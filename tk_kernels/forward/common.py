"""Shared code of the portable forward kernels: compute capability 8.0+, Triton interpreter."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tk_kernels.edges.few_rows import shared_bytes
from tk_kernels.generate.common import dot_type, jit, tl, triton
from tk_kernels.generate.step import StepState
from tk_kernels.generate.tuning import Tuning
from tk_kernels.packed import Packed

MINI_BATCHES = tuple(range(4, 65))
GPU_DTYPES = (torch.bfloat16, torch.float16)  # for tokens; Triton's interpreter also takes float32
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))  # whether Triton's interpreter runs the kernels


def sm_count(q: Tensor) -> int:
    return torch.cuda.get_device_properties(q.device).multi_processor_count


def forward_constants(q: Tensor, mini_batch: int, stages: int) -> dict[str, Any]:
    """Return compile-time arguments of the forward kernels by name, for q [..., H, D] and `mini_batch`, m.

    M, DP: m and D, padded to powers of two of at least 16. DOT: dtype of matmul operands.
    S: `stages`, or fewer if shared memory is too small: two tiles of M x DP, and per stage after the first, six and lr.
    GRAD_SCALE: factor on gradients, and on weights in registers: 1024 for float16, to avoid subnormal numbers, else 1.
    """
    head_dim = q.shape[-1]
    rows, columns = (max(16, triton.next_power_of_2(size)) for size in (mini_batch, head_dim))
    tile = rows * columns * q.element_size()
    most = 1 + (shared_bytes(q.device) - 2 * tile) // (6 * tile + 4 * rows) if q.is_cuda else stages
    return {
        "m": mini_batch,
        "M": rows,
        "D": head_dim,
        "DP": columns,
        "S": max(1, min(stages, most)),
        "DOT": dot_type(q),
        "GRAD_SCALE": 1024.0 if q.dtype == torch.float16 else 1.0,
    }


def launch(
    run: Callable[..., None],
    tokens: tuple[Tensor, ...],
    outer: tuple[Tensor, ...],
    weights: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    settings: Tuning | None = None,
    compile_only: bool = False,
) -> None:
    """Launch a forward kernel on tokens that begin at a mini-batch's start; write to `outputs`.

    run: function that launches the kernel, called as run(q, k, rest, m, B, settings, warmup=compile_only).
        `rest` holds the kernel's other tensors, sizes and strides, in order.
    tokens: q, k, v [B, T, H, D] and lr [B, T, H]. q and k already have RoPE.
    outer: token_scale [m], ln_weight, ln_bias [H, D]. weights: each layer's weight [B, H, in, out], bias [B, H, out].
    outputs: tensors to write: outputs, next weights and biases (may be `weights`), the last mini-batch's cached rows.
    settings: launch settings of the Triton kernel. None: run a Gluon kernel if one supports q, else use `tuning.toml`.
    compile_only: compile the kernel and compute nothing.
    """
    q, k, v, lr = tokens
    batch, count, heads, _ = q.shape
    sizes = count, heads, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3]
    with torch.cuda.device_of(q):
        rest = (v, lr, *outer, *weights, *outputs, *sizes)
        run(q, k, rest, len(outer[0]), batch, settings, warmup=compile_only)


def launch_packed(
    run: Callable[..., None],
    kernel: Any,
    tokens: tuple[Tensor, ...],
    outer: tuple[Tensor, ...],
    initial: tuple[Tensor, ...],
    state: StepState,
    sequences: Packed,
) -> Tensor:
    """Run a forward kernel on packed sequences; return the outputs [N, H, D] in q's dtype.

    run: launch function, called as run(q, k, rest, m, S, None, warmup=False, **options), for S sequences.
    kernel: a Triton kernel. Its arguments from cu_seqlens on are the names of `options`.
    tokens: q, k, v [N, H, D] and lr [N, H]. outer: token_scale [m], ln_weight, ln_bias [H, D].
    initial: weights and biases of sequences without earlier tokens, [H, ...].
    state: a generate state in the dual form; the sequences' slots are updated in place.
    """
    q, k, v, lr = tokens
    out, biases = torch.empty(q.shape, dtype=q.dtype, device=q.device), state.biases()
    weights = [x for weight, _, bias in state.layers for x in (weight, bias)]
    lows = [low for _, low, _ in state.layers]
    strides = (x.stride(0) for x in (weights[0], *biases, *state.accumulated[: len(biases)]))
    where = (sequences.cu_seqlens, sequences.start, sequences.slots, *lows, *initial, *strides)
    names = kernel.arg_names[kernel.arg_names.index("cu_seqlens") :]
    options = dict(zip(names, (*where, True, lows[0] is not None), strict=True))
    sizes = (0, q.shape[1], 0, *q.stride()[:2], 0, *k.stride()[:2], 0, *v.stride()[:2])
    with torch.cuda.device_of(q):
        rest = (v, lr, *outer, *weights, out, *weights, *state.accumulated, *sizes)
        run(q, k, rest, len(outer[0]), len(sequences.slots), None, warmup=False, **options)
    return out


@jit
def packed_sequence(cu_seqlens, start, slots, seq, m: tl.constexpr):
    """Return (index of token 0, length, earlier tokens, position, state slot) of a sequence.

    cu_seqlens, start, slots: fields of `Packed`. The position is the number of earlier tokens modulo m.
    """
    token = tl.load(cu_seqlens + seq)
    count = tl.load(cu_seqlens + seq + 1) - token
    before = tl.load(start + seq)
    return token.to(tl.int64), count, before, before % m, tl.load(slots + seq).to(tl.int64)


@jit
def keys_at(k, rows, token, begin, k_token, column, D: tl.constexpr, PACKED: tl.constexpr):
    """Return pointers to elements (token, column) of K, which has stride k_token over tokens.

    With PACKED, tokens -begin to -1 come from earlier calls; their keys are the first `begin` rows of `rows` [m, D].
    """
    if PACKED:
        return tl.where(token < 0, rows + (token + begin) * D, k + token * k_token) + column
    return k + (token * k_token + column)


@jit
def add_two(a1, a2, b1, b2):  # for `tl.reduce`: warps exchange both sums at once
    return a1 + b1, a2 + b2


@jit
def add_six(a1, a2, a3, a4, a5, a6, b1, b2, b3, b4, b5, b6):  # for `tl.reduce`, like `add_two`
    return a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6


@jit
def sums_of_six(s0, s1, s2, s3, s4, s5):  # each one's sum over dimension 0; warps exchange all six at once
    four, two = tl.join(tl.join(s0, s1), tl.join(s2, s3)), tl.join(tl.join(s4, s5), tl.join(s4, s5))
    four, two = tl.split(tl.sum(tl.join(four, two), 0))
    first, second = tl.split(four)
    third, _ = tl.split(two)
    s0, s1 = tl.split(first)
    s2, s3 = tl.split(second)
    s4, s5 = tl.split(third)
    return s0, s1, s2, s3, s4, s5


@jit
def normalization(s0, s1, D: tl.constexpr):
    """Return (mean, 1/std) of rows z [D] from sums s0 of z, s1 of z^2; eps 1e-6. Errors grow with (mean / std)^2."""
    mean = s0 * (1.0 / D)
    return mean, tl.rsqrt(tl.maximum(s1 * (1.0 / D) - mean * mean, 0.0) + 1e-6)


@jit
def gradient_coefficients(s0, s1, s2, s3, s4, s5, weight_squared, D: tl.constexpr):
    """Return (mean(z), 1/std(z), mean(g), mean(g * xhat) / std(z)) of each row z [D].

    xhat is (z - mean(z)) / std(z), and g is gamma * (gamma * xhat + beta - R), with LayerNorm's gamma and beta.
    The gradient of 1/2 |LN(z) - R|^2 with respect to z is (g - mean(g) - xhat * mean(g * xhat)) / std(z).
    s0 to s5: each row's sums of z, z^2, u, u * z, o * z and o, with u = gamma^2 * z and o = gamma * (beta - R).
    weight_squared: the sum of gamma^2.
    """
    mean, rstd = normalization(s0, s1, D)
    sum_c = s2 - mean * weight_squared  # sum of gamma^2 c; sum_cc: sum of gamma^2 c^2; c = z - mean
    sum_cc = s3 - mean * (s2 + sum_c)
    return mean, rstd, (rstd * sum_c + s5) * (1.0 / D), rstd * rstd * (rstd * sum_cc + s4 - mean * s5) * (1.0 / D)


@jit
def tanh(x):
    """Return tanh(x), on a GPU accurate to 11 bits: enough for 16-bit operands."""
    if INTERPRETED:
        return 2.0 * tl.sigmoid(2.0 * x) - 1.0
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@jit
def gelu_tanh(x):
    """Return (GELU(x) in its tanh form, the value of the tanh, which `gelu_slope` needs)."""
    th = tanh(x * (0.7978845608028654 + 0.035677408136300125 * x * x))
    half = 0.5 * x
    return half + half * th, th


@jit
def gelu_slope(x, th):
    """Return the derivative of GELU at x; th: the second result of `gelu_tanh`."""
    return 0.5 + 0.5 * th + 0.5 * x * (1.0 - th * th) * (0.7978845608028654 + 0.10703222440890037 * x * x)
