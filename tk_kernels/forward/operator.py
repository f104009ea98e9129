"""Shared code of the forward operators: argument checks, choice of a kernel, tokens that start inside a mini-batch."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from tk_kernels import build
from tk_kernels.checks import check_choice, check_contiguous, check_devices, check_outer, check_shape, check_state
from tk_kernels.forward import common
from tk_kernels.packed import Packed
from tk_kernels.reference.layer import rope as rotate
from tk_kernels.reference.token_rows import clone

HEAD_DIM = 64  # head dimension of the Hopper kernels
HEAD_DIMS = (64, 96, 128)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # Hopper kernels take the first; Triton on a GPU the first two
THUNDERKITTENS, TRITON, REFERENCE = BACKENDS = ("thunderkittens", "triton", "reference")
State = TypeVar("State", bound=tuple)
Tokens = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v [B, T, H, D], lr [B, T, H]
Outer = tuple[Tensor, Tensor, Tensor]  # token_scale [m], ln_weight, ln_bias [H, D]


@cache
def hopper_unavailable(kernel: str, arch: str | None) -> str:
    """Return why this Hopper kernel cannot run here, in one sentence; an empty string if it can.

    arch: the value of TTT_BENCH_ARCH, so that the cache notices a change.
    """
    return build.unavailable(kernel)


def chosen(q: Tensor, mini_batch: int, kernels: dict[int, str]) -> str:
    """Choose the backend for tokens like q: the Hopper kernel if it can run, else Triton, else the reference.

    kernels: names of the Hopper kernels, by mini-batch.
    """
    kernel = kernels.get(mini_batch)
    takes = kernel and q.is_cuda and q.dtype == torch.bfloat16 and q.shape[3] == HEAD_DIM
    if takes and not hopper_unavailable(str(kernel), os.environ.get("TTT_BENCH_ARCH")):
        return THUNDERKITTENS
    interpreted = common.triton is not None and common.triton.knobs.runtime.interpret
    takes_type = interpreted or (q.is_cuda and q.dtype in common.HALF)
    return TRITON if takes_type and not common.available() else REFERENCE


def scaled(shape: Sequence[int], head_dim: int) -> tuple[int, ...]:
    """Scale a shape for heads of HEAD_DIM to heads of head_dim."""
    return tuple(size * head_dim // HEAD_DIM for size in shape)


def check_arguments(tokens: Tokens, outer: Outer, state: tuple, weights: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError that names the first unsupported argument and the supported values.

    weights: shapes of the state's weights, without [B, H], for heads of HEAD_DIM.
    """
    (q, k, v, lr), (token_scale, ln_weight, ln_bias) = tokens, outer
    if q.ndim != 4 or q.shape[3] not in HEAD_DIMS:
        raise ValueError(f"q has shape {tuple(q.shape)}: the kernels take [B, T, H, D], D one of {HEAD_DIMS}")
    batch, _, heads, head_dim = q.shape
    check_choice("q.dtype", q.dtype, DTYPES)
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_shape(name, x, tuple(q.shape))
        check_choice(f"{name}.dtype", x.dtype, (q.dtype,))
        _check_strides(name, x)
    check_shape("lr", lr, tuple(q.shape[:3]))
    check_outer(token_scale, ln_weight, ln_bias, heads, head_dim)
    _check_mini_batch(token_scale)
    shapes = {name: (batch, heads, *scaled(shape, head_dim)) for name, shape in weights.items()}
    check_state(state, shapes | {"position": (batch,)}, torch.float32)
    others = {"k": k, "v": v, "lr": lr, "token_scale": token_scale, "ln_weight": ln_weight, "ln_bias": ln_bias}
    kept = {f"state.{name}": x for name, x in state._asdict().items()}  # type: ignore[attr-defined]
    check_devices(q=q, **others, **kept)


def forward_packed(
    launch: Callable[..., Tensor],
    tokens: Tokens,
    outer: Outer,
    initial: tuple[Tensor, ...],
    state: Any,
    sequences: Packed,
) -> Tensor:
    """Check the arguments of a portable kernel's `launch_packed` and run it: out [N, H, D] in q's dtype.

    tokens: q, k, v [N, H, D] with RoPE in the dtype of the state's rows, lr [N, H]. outer: as in `ops.forward`.
    initial: the learner's weights [H, ...], with which sequences of `start` 0 begin.
    state: a `GenerateState` in the dual form, whose slots are updated in place; its position is not read.
    Raises ValueError for unsupported arguments, and where the portable kernels cannot run.
    """
    (q, k, v, lr), (token_scale, ln_weight, ln_bias) = tokens, outer
    if why := common.available():
        raise ValueError(why)
    if q.ndim != 3 or q.shape[2] not in HEAD_DIMS:
        raise ValueError(f"q has shape {tuple(q.shape)}: the kernels take [N, H, D], D one of {HEAD_DIMS}")
    check_shape("q", q, (sequences.tokens, *q.shape[1:]))
    check_choice("q.dtype", q.dtype, (state.gathered[0].dtype,))
    if q.is_cuda:
        check_choice("q.dtype", q.dtype, common.HALF)
    for name, x in (("k", k), ("v", v)):
        check_shape(name, x, tuple(q.shape))
        check_choice(f"{name}.dtype", x.dtype, (q.dtype,))
    for name, x in (("q", q), ("k", k), ("v", v)):
        _check_strides(name, x)
    check_shape("lr", lr, tuple(q.shape[:2]))
    check_outer(token_scale, ln_weight, ln_bias, *q.shape[1:])
    _check_mini_batch(token_scale)
    check_choice("state.form", state.form, ("dual",))
    check_choice("state.mini_batch", state.mini_batch, (len(token_scale),))
    check_devices(q=q, k=k, v=v, lr=lr, token_scale=token_scale, state=state.gathered[0], cu_seqlens=sequences.start)
    rates, *learner = to_float32(lr, *outer)
    return launch((q, k, v, rates), tuple(learner), to_float32(*initial), state, sequences)


def check_inplace(state: tuple, mini_batch: int, widths: dict[str, int]) -> None:
    """Raise ValueError unless the kernel can write to the state's tensors; its weights are already checked.

    widths: last dimension of each of the state's tensors of rows [B, H, mini_batch, width], for heads of HEAD_DIM.
    """
    kept = state._asdict()  # type: ignore[attr-defined]
    *sequences, head_dim, _ = next(iter(kept.values())).shape
    shapes = {name: (*sequences, mini_batch, *scaled((width,), head_dim)) for name, width in widths.items()}
    check_state(state, shapes, torch.float32)
    for name, x in kept.items():
        check_contiguous(f"state.{name}, which inplace=True writes to,", x)


def _check_mini_batch(token_scale: Tensor) -> None:
    least, most = common.MINI_BATCHES[0], common.MINI_BATCHES[-1]
    if not least <= len(token_scale) <= most:
        raise ValueError(f"len(token_scale), the mini-batch, is {len(token_scale)}: must be {least} to {most}")


def _check_strides(name: str, x: Tensor) -> None:
    """Raise ValueError unless D is contiguous and other strides are multiples of 8: kernels read 16 bytes at once."""
    if x.stride(-1) != 1 or any(stride % 8 for stride in x.stride()[:-1]):
        raise ValueError(
            f"{name} has strides {x.stride()}: the kernel takes D contiguous (stride 1), the others multiples of 8"
        )


def check_addresses(**tensors: Tensor) -> None:
    """Raise ValueError unless addresses are multiples of 16 bytes. Call at run time: tracing has no addresses."""
    for name, x in tensors.items():
        if x.data_ptr() % 16:
            whole = 16 // x.element_size()
            begins = f"{name} begins at element {x.storage_offset()} of its storage"
            raise ValueError(f"{begins}: must be a multiple of {whole}")


def to_float32(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return contiguous float32 tensors, copied where needed: kernels read all except q, k and v in this form."""
    return tuple(x.float().contiguous() for x in tensors)


def forward_from(
    start: int,
    tokens: Tokens,
    outer: Outer,
    state: State,
    rope: bool,
    reference: Callable[..., tuple[Tensor, State]],
    aligned: Callable[[Tokens, Outer, State, bool], tuple[Tensor, State]],
) -> tuple[Tensor, State]:
    """Return the outputs of tokens that start at position `start` of a mini-batch, and the state after them.

    Tokens up to the end of that mini-batch run in `reference` in float32, the tokens after them in `aligned`.
    """
    count = tokens[0].shape[1]
    begun = min(-start % len(outer[0]), count)
    if not tokens[0].numel():
        return torch.empty_like(tokens[0]), clone(state)
    if not begun:
        return aligned(tokens, outer, state, rope)
    first, rest = (_cut(tokens, cut) for cut in (slice(begun), slice(begun, None)))
    out, state = by_reference(reference, first, outer, state, start, rope)
    if begun == count:
        return out, state
    later, state = aligned(rest, outer, state, rope)
    return torch.cat((out, later), 1), state


def _cut(tokens: Tokens, cut: slice) -> Tokens:
    q, k, v, lr = tokens
    return q[:, cut], k[:, cut], v[:, cut], lr[:, cut]


def by_reference(
    reference: Callable[..., tuple[Tensor, State]], tokens: Tokens, outer: Outer, state: State, start: int, rope: bool
) -> tuple[Tensor, State]:
    """Run `reference` in float32 on tokens from position `start`; outputs have the tokens' dtype."""
    q, k, v, lr = tokens
    if rope:
        position = torch.arange(start, start + q.shape[1], device=q.device) % len(outer[0])
        q, k = (rotate(x.float(), position).to(x.dtype) for x in (q, k))
    out, state = reference(*to_float32(q, k, v, lr), *outer, state, start=start)
    return out.to(q.dtype), state


def reference_into(
    module: Any,
    kind: type,
    tokens: Tokens,
    outer: Outer,
    weights: Sequence[Tensor],
    outputs: Sequence[Tensor],
    rope: bool,
) -> None:
    """Write what a kernel writes to `outputs` (out, weights, rows), by module.forward on a new state of type `kind`."""
    rows = (torch.zeros_like(x) for x in outputs[1 + len(weights) :])
    position = torch.zeros(len(tokens[0]), dtype=torch.int32, device=tokens[0].device)
    found, after = by_reference(module.forward, tokens, outer, kind(*weights, *rows, position), 0, rope)
    for target, x in zip(outputs, (found, *after[:-1]), strict=True):
        target.copy_(x)
