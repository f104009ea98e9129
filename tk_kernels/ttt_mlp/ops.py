"""How does PyTorch call the TTT-MLP forward kernel? Checks, a custom operator, and the reference's signature.

`forward` computes what `reference.forward` of the same arguments does (form "dual"), on a Hopper GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import check_choice, check_outer, check_shape, common_position
from tk_kernels.reference_math import rope as rotate
from tk_kernels.ttt_mlp import reference
from tk_kernels.ttt_mlp.reference import MLPState

KERNEL = "ttt_mlp/forward"
KERNELS = {16: KERNEL, 32: "ttt_mlp/forward_32"}  # of each mini-batch
HEAD_DIM = 64
HIDDEN = 256
DTYPES = (torch.bfloat16, torch.float16)
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def available(mini_batch: int = 16) -> str:
    """Why the kernel of this mini-batch cannot run here, in one sentence; empty when it can."""
    return build.unavailable(KERNELS[mini_batch])


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: MLPState,
    *,
    start: int | None = None,
    rope: bool = False,
) -> tuple[Tensor, MLPState]:
    """Outputs [B, T, H, 64] of T tokens and the state after them; the given state is left as it is.

    q, k, v [B, T, H, 64] bfloat16 or float16, the last dimension contiguous; lr [B, T, H] = base_lr * sigmoid / 64;
    token_scale [16] or [32]; ln_weight, ln_bias [H, 64]; the state float32, F = 256. T is any; state.position is common
    to the batch, and a caller that knows it passes it as start and saves reading it from the device. With rope, q and k
    are rotated here, by position in the mini-batch. Tokens up to the end of a mini-batch that the state has begun
    go through the reference. float16 tokens are rounded to bfloat16 for the products. Raises ValueError for what is not
    supported.
    """
    _check(q, k, v, lr, token_scale, ln_weight, ln_bias, state)
    start = common_position(state.position, start)
    mini_batch = len(token_scale)
    begun = min(-start % mini_batch, q.shape[1])
    outer = (token_scale, ln_weight, ln_bias)
    if begun:
        head = (q[:, :begun], k[:, :begun], v[:, :begun], lr[:, :begun])
        first, state = _reference_head(*head, *outer, state, start, rope)
        if begun == q.shape[1]:
            return first, state
        rest = (q[:, begun:], k[:, begun:], v[:, begun:], lr[:, begun:])
        out, state = forward(*rest, *outer, state, start=0, rope=rope)
        return torch.cat((first, out), 1), state
    if not q.shape[1]:
        return torch.empty_like(q), state
    wide = (_wide(lr), _wide(token_scale), _wide(ln_weight), _wide(ln_bias))
    weights = (_wide(state.W1), _wide(state.b1), _wide(state.W2), _wide(state.b2))
    out, W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows = _forward(q, k, v, *wide, *weights, rope)
    position = torch.full_like(state.position, q.shape[1] % mini_batch)
    return out, MLPState(W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows, position)


def _wide(x: Tensor) -> Tensor:
    return x.float().contiguous()


@torch.library.custom_op("ttt_bench::mlp_forward", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    W1: Tensor,
    b1: Tensor,
    W2: Tensor,
    b2: Tensor,
    rope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The kernel: out, W1, b1, W2, b2, k_rows, x2_rows, g1_rows, g2_rows, all new tensors."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_address(name, x)
    module = build.load(KERNELS[len(token_scale)])
    results = _empty_results(q, token_scale, W1, b1, W2, b2)
    module.forward(q, k, v, lr, token_scale, ln_weight, ln_bias, W1, b1, W2, b2, *results, rope)
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
    W1: Tensor,
    b1: Tensor,
    W2: Tensor,
    b2: Tensor,
    rope: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_results(q, token_scale, W1, b1, W2, b2)


def _empty_results(q: Tensor, token_scale: Tensor, W1: Tensor, b1: Tensor, W2: Tensor, b2: Tensor) -> Results:
    def rows(width: int) -> Tensor:
        return W1.new_empty(*W1.shape[:2], len(token_scale), width)

    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    weights = (torch.empty_like(W1), torch.empty_like(b1), torch.empty_like(W2), torch.empty_like(b2))
    return out, *weights, rows(HEAD_DIM), rows(HIDDEN), rows(HIDDEN), rows(HEAD_DIM)


def _reference_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: MLPState,
    start: int,
    rope: bool,
) -> tuple[Tensor, MLPState]:
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
    state: MLPState,
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
    check_choice("len(token_scale), the mini-batch,", len(token_scale), tuple(KERNELS))
    shapes = {"W1": (HEAD_DIM, HIDDEN), "b1": (HIDDEN,), "W2": (HIDDEN, HEAD_DIM), "b2": (HEAD_DIM,)}
    for name, shape in shapes.items():
        tensor = getattr(state, name)
        check_shape(f"state.{name}", tensor, (batch, heads, *shape))
        check_choice(f"state.{name}.dtype", tensor.dtype, (torch.float32,))
    others = {"k": k, "v": v, "lr": lr, "token_scale": token_scale, "ln_weight": ln_weight, "ln_bias": ln_bias}
    for name, x in (others | {"state.W1": state.W1}).items():
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}: q is on {q.device}")


def _check_strides(name: str, x: Tensor) -> None:
    """The kernel reads 16-byte pieces: D contiguous, the other strides multiples of 8 elements."""
    if x.stride(3) != 1 or any(stride % 8 for stride in x.stride()[:3]):
        raise ValueError(
            f"{name} has strides {x.stride()}: the kernel takes D contiguous (stride 1), the others multiples of 8"
        )


def _check_address(name: str, x: Tensor) -> None:
    """Inside the operator, where a tensor has an address also under torch.compile."""
    if x.data_ptr() % 16:
        raise ValueError(f"{name} is at address {x.data_ptr():#x}: the kernel takes multiples of 16 bytes")
