"""Copies between a generate state's slots and float32 tensors of a batch, for forward kernels that read no slots."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tk_kernels.generate.common import jit, load_weights, on_its_device, slot_of, store_weights, tl, to_float32, triton
from tk_kernels.generate.step import StepState

TILE = 4096  # most numbers that a program copies
Stored = tuple[Tensor, Tensor | None, bool]  # a tensor with slots, its low plane, whether it is stored transposed


def read_slots(state: StepState, slots: Tensor, start: Tensor, initial: Sequence[Tensor]) -> list[Tensor]:
    """Return float32 copies [B, H, ...] of the weights and biases of B sequences, in the layout of the reference.

    slots [B]: the sequences' indices in `state`. start [B]: how many tokens each has read before. A sequence that has
    read none gets a copy of `initial`: weights [H, ...] and biases [H, ...] or [H, 1, ...].
    """
    copies = []
    for stored, first in zip(_parameters(state), to_float32(*initial), strict=True):
        kept, _, is_transposed = stored
        shape = kept.mT.shape if is_transposed else kept.shape
        copies.append(torch.empty(len(slots), *shape[1:], dtype=torch.float32, device=kept.device))
        _launch(copies[-1], stored, slots, first, start)
    return copies


def write_slots(state: StepState, slots: Tensor, values: Sequence[Tensor]) -> None:
    """Write weights, biases and cached rows to the slots [B] of `state`.

    values: the tensors of a reference state without its position, in float32 and contiguous.
    """
    rows = ((each, None, False) for each in state.gathered)
    for stored, x in zip((*_parameters(state), *rows), values, strict=True):
        _launch(x, stored, slots)


def _parameters(state: StepState) -> Iterator[Stored]:
    for layer in state.layers:
        weight, low, bias = layer
        yield weight, low, layer is not state.layers[-1]
        yield bias, None, False


@on_its_device
def _launch(x: Tensor, stored: Stored, slots: Tensor, first: Tensor | None = None, start: Tensor | None = None) -> None:
    """Copy slots of a tensor [slots, H, R, C] or [slots, H, C] to x, or x to the slots if `start` is None."""
    kept, low, is_transposed = stored
    heads, *rows, columns = kept.shape[1:]
    (count,), padded = rows or (1,), triton.next_power_of_2(columns)
    block = min(triton.next_power_of_2(count), max(1, TILE // padded))
    _copy_slots[(len(slots), heads, triton.cdiv(count, block))](
        kept, low, x, first, start, slots, kept.stride(0), H=heads, R=count, C=columns, CP=padded, BLOCK=block,
        TRANSPOSED=is_transposed, PLANES=low is not None,
    )  # fmt: skip


@jit
def _copy_slots(
    kept, low, x, first, start, slots, stride,
    H: tl.constexpr, R: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr,
    TRANSPOSED: tl.constexpr, PLANES: tl.constexpr,
):  # fmt: skip
    """Copy BLOCK rows of one head of one sequence; the grid is (B, H, R / BLOCK).

    start [B]: copy slots of `kept`, `low` [slots, H, R, C] to x, or `first` where start is 0. None: copy x to slots.
    x [B, H, R, C], first [H, R, C]: contiguous float32; with TRANSPOSED [B, H, C, R], [H, C, R]. stride: over slots.
    """
    seq, head = tl.program_id(0), tl.program_id(1)
    r = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)[:, None]
    c = tl.arange(0, CP)[None, :]
    mask = (r < R) & (c < C)
    at_slot = slot_of(slots, seq, True) * stride + head * (R * C) + r * C + c
    at = head * (R * C) + (c * R + r if TRANSPOSED else r * C + c)
    x += seq.to(tl.int64) * (H * R * C)
    if start is None:
        store_weights(kept, low, at_slot, tl.load(x + at, mask=mask, other=0), mask, PLANES)
    elif tl.load(start + seq) == 0:
        tl.store(x + at, tl.load(first + at, mask=mask, other=0), mask=mask)
    else:
        tl.store(x + at, load_weights(kept, low, at_slot, mask, PLANES), mask=mask)
