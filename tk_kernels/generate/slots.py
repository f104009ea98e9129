"""Gather a generate state's slots into float32 batch tensors, and write such tensors back."""

from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from tk_kernels.generate.common import jit, load_weights, on_its_device, slot_of, store_weights, tl, to_float32, triton
from tk_kernels.generate.step import StepState

TILE = 4096  # most elements that a program copies, if it copies more than one row
Stored = tuple[Tensor, Tensor | None, bool]  # a tensor with slots, its low plane, whether it is stored transposed


def read_slots(state: StepState, slots: Tensor, start: Tensor, initial: Sequence[Tensor]) -> list[Tensor]:
    """Return weights and biases of B sequences as float32 [B, H, ...] in the reference layout.

    slots [B]: the sequences' indices in `state`. start [B]: number of tokens that each sequence has read before.
    A sequence with start 0 gets a copy of `initial`: weights [H, ...] and biases [H, ...] or [H, 1, ...].
    """
    stored = [*_parameters(state)]
    shapes = [x.mT.shape if is_transposed else x.shape for x, _, is_transposed in stored]
    copies = [torch.empty(len(slots), *shape[1:], dtype=torch.float32, device=slots.device) for shape in shapes]
    _launch(slots, stored, copies, tuple(to_float32(*initial)), start)
    return copies


def write_slots(state: StepState, slots: Tensor, values: Sequence[Tensor]) -> None:
    """Write weights, biases and cached rows to the slots [B] of `state`.

    values: the tensors of a reference state without its position, in float32 and contiguous.
    """
    rows = ((each, None, False) for each in state.accumulated)
    _launch(slots, [*_parameters(state), *rows], values)


def _parameters(state: StepState) -> Iterator[Stored]:
    for layer in state.layers:
        weight, low, bias = layer
        yield weight, low, layer is not state.layers[-1]
        yield bias, None, False


@on_its_device
def _launch(
    slots: Tensor,
    stored: Sequence[Stored],
    copies: Sequence[Tensor],
    initial: tuple[Tensor, ...] | None = None,
    start: Tensor | None = None,
) -> None:
    if not len(stored) == len(copies) == len(initial or copies):
        raise ValueError(f"{len(copies)} values and {len(initial or copies)} initial ones for {len(stored)} tensors")
    tensors, low, transposed = zip(*stored, strict=True)
    programs, shapes = _blocks(tuple(x.shape[2:] for x in tensors), transposed)
    heads, strides = tensors[0].shape[1], tuple(x.stride(0) for x in tensors)
    _copy_slots[(len(slots), heads, programs)](
        tensors, low, tuple(copies), initial, strides, start, slots, H=heads, SHAPES=shapes
    )


@cache
def _blocks(
    shapes: tuple[tuple[int, ...], ...], transposed: tuple[bool, ...]
) -> tuple[int, tuple[tuple[int, ...], ...]]:
    found, blocks = [], 0
    for (*rows, columns), is_transposed in zip(shapes, transposed, strict=True):
        (count,), padded = rows or (1,), triton.next_power_of_2(columns)
        block = min(triton.next_power_of_2(count), max(1, TILE // padded))
        found.append((blocks, count, columns, padded, block, is_transposed))
        blocks += triton.cdiv(count, block)
    return blocks, tuple(found)


@jit
def _copy_slots(tensors, low, copies, initial, strides, start, slots, H: tl.constexpr, SHAPES: tl.constexpr):
    """Copy one block of rows of one tensor, for one head of one sequence, from or to slots.

    The grid is (B, H, blocks of all tensors). slots [B]: each sequence's index in the state's tensors.
    If start is None, write to the state. Otherwise read from it, or from `initial` where start [B] is 0.
    Each of the following has one entry per tensor:
    tensors, low [slots, H, R, C]: the state's tensor, and its low plane or None. strides: their stride over slots.
    copies [B, H, R, C] and initial [H, R, C]: the batch's tensor and the values of new sequences, contiguous float32.
        With TRANSPOSED, they are [B, H, C, R] and [H, C, R].
    SHAPES: (first block's index, R, C, C padded to a power of two, BLOCK, TRANSPOSED), with BLOCK rows per block.
    """
    for i in tl.static_range(len(SHAPES)):
        row = (tl.program_id(2) - SHAPES[i][0]) * SHAPES[i][4]
        if (row >= 0) & (row < SHAPES[i][1]):
            values = None if start is None else initial[i]
            _copy_block(tensors[i], low[i], copies[i], values, strides[i], start, slots, row, H,
                        SHAPES[i][1], SHAPES[i][2], SHAPES[i][3], SHAPES[i][4], SHAPES[i][5])  # fmt: skip


@jit
def _copy_block(
    tensor, low, copied, initial, stride, start, slots, row, H: tl.constexpr,
    R: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BLOCK: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Copy up to BLOCK rows of one tensor, from row `row` on; arguments as in `_copy_slots`."""
    seq, head = tl.program_id(0), tl.program_id(1)
    r = row + tl.arange(0, BLOCK)[:, None]
    c = tl.arange(0, CP)[None, :]
    mask = (r < R) & (c < C)
    at_slot = slot_of(slots, seq, True) * stride + head * (R * C) + r * C + c
    at = head * (R * C) + (c * R + r if TRANSPOSED else r * C + c)
    copied += seq.to(tl.int64) * (H * R * C)
    PLANES: tl.constexpr = low is not None
    if start is None:
        store_weights(tensor, low, at_slot, tl.load(copied + at, mask=mask, other=0), mask, PLANES)
    elif tl.load(start + seq) == 0:
        tl.store(copied + at, tl.load(initial + at, mask=mask, other=0), mask=mask)
    else:
        tl.store(copied + at, load_weights(tensor, low, at_slot, mask, PLANES), mask=mask)
