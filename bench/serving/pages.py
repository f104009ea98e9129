"""States of sequences in vLLM's cache: one page of bytes per layer and sequence. A slot is the index of a page.

A page holds the convolutions' windows, then what the operator's `generate_state` makes, except the position: that
follows from the number of tokens that vLLM has computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from bench.models.config import TTTConfig
from bench.models.layers import at_least_float32, empty_conv_cache
from bench.models.operator import TorchOperator
from bench.models.ttt import LayerState, TTTBlock, TTTModel
from bench.serving.step import PromptRun, Step

ALIGNED = 64  # bytes; makes offsets and strides multiples of 16 float32 numbers, for which Triton compiles the kernels


class Layout:
    """Shapes and dtypes of one layer's state for one sequence, and where each tensor begins in a page."""

    def __init__(self, config: TTTConfig, operator: TorchOperator, dtype: torch.dtype) -> None:
        self.operator, self._heads = operator, config.heads
        device, inner = torch.device("meta"), at_least_float32(dtype)
        weights = [torch.empty(shape, device=device, dtype=inner) for shape in config.weight_shapes.values()]
        convolved = config.backbone == "mamba"
        block_conv, qk_conv = (
            empty_conv_cache(1, config.width, device, dtype) if convolved else None for _ in range(2)
        )
        first = operator.init_state(weights, 1, config.mini_batch, inner)
        self._empty = LayerState(block_conv, qk_conv, operator.generate_state(first))
        tensors = _tensors(self._empty)
        self.shapes = [tuple(x.shape[1:]) for x in tensors]
        self.dtypes = [x.dtype for x in tensors]
        self.offsets, self.page_bytes = [], 0
        for x in tensors:
            self.offsets.append(self.page_bytes)
            self.page_bytes += -(-x.numel() * x.element_size() // ALIGNED) * ALIGNED

    def views(self, pages: Tensor) -> list[Tensor]:
        """Return the state's tensors [slots, ...] as views of pages [slots, bytes] int8."""
        spans = zip(self.offsets, self.shapes, self.dtypes, strict=True)
        return [
            pages[:, offset : offset + prod(shape) * dtype.itemsize].view(dtype).unflatten(1, shape)
            for offset, shape, dtype in spans
        ]

    def in_place(self, views: Sequence[Tensor], slots: Tensor, positions: Tensor) -> LayerState:
        """Return the state for a generate step that updates the slots [B] in place.

        views: result of `views`. positions [B, H]: in the mini-batch.
        """
        state = _mapped(self._empty, iter(views).__next__, positions)
        return replace(state, inner=replace(state.inner, slots=slots), slots=slots)

    def read(self, views: Sequence[Tensor], slots: Tensor, position: int) -> LayerState:
        """Return a copy of the states in slots [B] int64, for a forward from `position` in the mini-batch."""
        each = iter(views)
        positions = torch.full((len(slots), self._heads), position, dtype=torch.int32, device=slots.device)
        state = _mapped(self._empty, lambda: next(each).index_select(0, slots), positions)
        return replace(state, inner=state.inner.to_state())

    def write(self, views: Sequence[Tensor], slots: Tensor, state: LayerState) -> None:
        """Copy the state after a forward to the slots [B] int64."""
        state = replace(state, inner=self.operator.generate_state(state.inner))
        for view, x in zip(views, _tensors(state), strict=True):
            view.index_copy_(0, slots, x)


def hidden(model: TTTModel, layout: Layout, layers: Sequence[Sequence[Tensor]], ids: Tensor, step: Step) -> Tensor:
    """Return the residual stream [N, C] after the last block for a step's tokens ids [N]; update the slots' states.

    layers: each layer's `Layout.views`. Empty to run one fresh run of prompts and drop its state.
    """
    h = model.model.embed_tokens(ids)
    count = len(step.slots)
    positions = step.positions[:, None].repeat(1, model.config.heads)  # as the kernels read them
    steps = h[:count, None]
    spans = [(h[run.token :][: run.requests * run.length], run) for run in step.runs]
    prompts = [span.unflatten(0, (run.requests, run.length)) for span, run in spans]
    for index, block in enumerate(model.blocks):
        views = layers[index] if layers else []
        if count:
            state = layout.in_place(views, step.slots, positions)
            steps = block.generate_step(steps, model._rope, state, model.operator)
        for number, run in enumerate(step.runs):
            prompts[number] = _forward(model, layout, views, block, prompts[number], run, step.prompt_slots)
    return torch.cat([x.flatten(0, 1) for x in (steps, *prompts)])


def _forward(
    model: TTTModel, layout: Layout, views: Sequence[Tensor], block: TTTBlock, h: Tensor, run: PromptRun, slots: Tensor
) -> Tensor:
    """Run one block on one run of prompts: residual stream h [requests, length, C] -> the stream after the block.

    slots: those of all prompts of the step.
    """
    slots = slots[run.first : run.first + run.requests]
    state = model.layer_state(block, run.requests) if run.fresh else layout.read(views, slots, run.start)
    h = block(h, model._rope, state, model.operator, run.start)
    if views:
        layout.write(views, slots, state)
    return h


def _tensors(state: LayerState) -> list[Tensor]:
    """Return every tensor of a state except the position."""
    found: list[Tensor] = []

    def keep(x: Any) -> None:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, tuple):
            for each in x:
                keep(each)
        elif is_dataclass(x):
            for field in fields(x):
                if field.name != "position":
                    keep(getattr(x, field.name))

    keep(state)
    return found


def _mapped(state: Any, tensor: Callable[[], Tensor], positions: Tensor) -> Any:
    """Return `state` with `positions` and with each other tensor replaced by `tensor()`, in the order of `_tensors`."""
    if isinstance(state, Tensor):
        return tensor()
    if isinstance(state, tuple):
        return tuple(_mapped(each, tensor, positions) for each in state)
    if not is_dataclass(state) or isinstance(state, type):
        return state
    names = [field.name for field in fields(state)]
    return replace(
        state, **{n: positions if n == "position" else _mapped(getattr(state, n), tensor, positions) for n in names}
    )
