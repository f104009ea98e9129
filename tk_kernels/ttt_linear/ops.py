"""How does PyTorch call the TTT-Linear forward kernel? Checks, a schedule and a custom operator.

`forward` computes what `reference.forward` of the same arguments does (form "dual"), on a Hopper GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import check_choice, check_outer, check_shape, common_position
from tk_kernels.reference_math import rope as rotate
from tk_kernels.ttt_linear import reference
from tk_kernels.ttt_linear.reference import LinearState

KERNEL = "ttt_linear/forward"
MINI_BATCHES = (16, 32)
HEAD_DIM = 64
DTYPES = (torch.bfloat16, torch.float16)


def available() -> str:
    """Why the kernel cannot run here, in one sentence; empty when it can."""
    return build.unavailable(KERNEL)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: LinearState,
    *,
    rope: bool = False,
    start: int | None = None,
) -> tuple[Tensor, LinearState]:
    """Outputs [B, T, H, 64] of T tokens and the state after them; the given state is left as it is.

    q, k, v [B, T, H, 64] bfloat16 or float16, the last dimension contiguous; lr [B, T, H] = base_lr * sigmoid(...) / D;
    token_scale [16] or [32]; ln_weight, ln_bias [H, 64]; the state float32. rope=True applies RoPE (theta 10000,
    position in the mini-batch, interleaved pairs) to q and k, which otherwise arrive with it. T is any; state.position
    is common to the batch, and a caller that knows it passes it as start and saves reading it from the device. Tokens
    up to the end of a mini-batch that the state has begun go through the reference. Raises ValueError for what is not
    supported.
    """
    _check(q, k, v, lr, token_scale, ln_weight, ln_bias, state)
    start = common_position(state.position, start)
    mini_batch = len(token_scale)
    head = min(-start % mini_batch, q.shape[1])
    outer = (token_scale, ln_weight, ln_bias)
    if head:
        first = (q[:, :head], k[:, :head], v[:, :head], lr[:, :head])
        begun, state = _reference_head(*first, *outer, state, rope, start)
        if head == q.shape[1]:
            return begun, state
        rest = (q[:, head:], k[:, head:], v[:, head:], lr[:, head:])
        out, state = forward(*rest, *outer, state, rope=rope, start=0)
        return torch.cat((begun, out), 1), state
    if not q.shape[1]:
        return torch.empty_like(q), state
    wide = (_wide(lr), _wide(token_scale), _wide(ln_weight), _wide(ln_bias), _wide(state.W), _wide(state.b))
    out, W, b, k_rows, g_rows = _forward(q, k, v, *wide, rope)
    return out, LinearState(W, b, k_rows, g_rows, torch.full_like(state.position, q.shape[1] % mini_batch))


@torch.library.custom_op("ttt_bench::linear_forward", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    W: Tensor,
    b: Tensor,
    rope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The kernel: out, W, b, k_rows, g_rows, all new tensors."""
    _check_addresses({"q": q, "k": k, "v": v})
    module = build.load(KERNEL)
    results = _empty_results(q, token_scale, W, b)
    plan = schedule(q.shape[0] * q.shape[2], len(token_scale), _processors(q))
    with torch.cuda.device(q.device):
        module.forward(q, k, v, lr, token_scale, ln_weight, ln_bias, W, b, *results, rope, *plan)
    return results


@_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    W: Tensor,
    b: Tensor,
    rope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_results(q, token_scale, W, b)


def schedule(sequences: int, mini_batch: int, processors: int) -> tuple[int, int]:
    """Warps a head and heads a block: few heads are split over more warps, many share a processor."""
    return (4, 1) if sequences <= 2 * processors or mini_batch > 16 else (2, 4)


def _empty_results(
    q: Tensor, token_scale: Tensor, W: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows = (*W.shape[:2], len(token_scale), HEAD_DIM)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    return out, torch.empty_like(W), torch.empty_like(b), W.new_empty(rows), W.new_empty(rows)


def _wide(x: Tensor) -> Tensor:
    return x.float().contiguous()


def _processors(q: Tensor) -> int:
    return torch.cuda.get_device_properties(q.device).multi_processor_count


def _reference_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: LinearState,
    rope: bool,
    start: int,
) -> tuple[Tensor, LinearState]:
    """The rest of a mini-batch that the state has begun, in float32."""
    if rope:
        position = torch.arange(start, start + q.shape[1], device=q.device)
        q, k = rotate(q.float(), position).to(q.dtype), rotate(k.float(), position).to(k.dtype)
    outer = (token_scale, ln_weight, ln_bias)
    out, state = reference.forward(q.float(), k.float(), v.float(), lr.float(), *outer, state, start=start)
    return out.to(q.dtype), state


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: LinearState,
) -> None:
    """Raise ValueError, by name and with what is supported, unless the kernel can take these."""
    if q.ndim != 4 or q.shape[3] != HEAD_DIM:
        raise ValueError(f"q has shape {tuple(q.shape)}: the kernel takes [B, T, H, {HEAD_DIM}]")
    batch, _, heads, _ = q.shape
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_shape(name, x, tuple(q.shape))
        check_choice(f"{name}.dtype", x.dtype, DTYPES if name == "q" else (q.dtype,))
        _check_strides(name, x)
    check_shape("lr", lr, tuple(q.shape[:3]))
    check_outer(token_scale, ln_weight, ln_bias, heads, HEAD_DIM)
    check_choice("len(token_scale), the mini-batch,", len(token_scale), MINI_BATCHES)
    check_shape("state.W", state.W, (batch, heads, HEAD_DIM, HEAD_DIM))
    check_shape("state.b", state.b, (batch, heads, HEAD_DIM))
    check_choice("state.W.dtype", state.W.dtype, (torch.float32,))
    check_choice("state.b.dtype", state.b.dtype, (torch.float32,))
    for name, x in (("k", k), ("v", v), ("lr", lr), ("state.W", state.W), ("token_scale", token_scale)):
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}: q is on {q.device}")


def _check_strides(name: str, x: Tensor) -> None:
    """TMA reads 16-byte pieces: D contiguous, the other strides multiples of 8 elements."""
    if x.stride(3) != 1 or any(stride % 8 for stride in x.stride()[:3]):
        raise ValueError(
            f"{name} has strides {x.stride()}: the kernel takes D contiguous (stride 1), the others multiples of 8"
        )


def _check_addresses(tokens: dict[str, Tensor]) -> None:
    """TMA begins at multiples of 16 bytes; known where the kernel runs, not where a compiler traces it."""
    for name, x in tokens.items():
        if x.data_ptr() % 16:
            raise ValueError(f"{name} begins at element {x.storage_offset()} of its storage: must be a multiple of 8")
