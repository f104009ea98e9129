"""States of sequences in vLLM's cache: one page of bytes per layer and sequence, which its slot names.

A page holds what `Operator.generate_state` makes, then the convolutions' windows, without the position: it follows from
the number of tokens that vLLM has computed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from math import prod
from typing import Any, cast

import torch
from torch import Tensor

from bench.models.config import TTTConfig
from bench.models.layers import at_least_float32, empty_conv_cache
from bench.models.operator import Operator
from bench.models.ttt import LayerState, TTTBlock, TTTModel
from bench.serving.step import Run, Step

ALIGNED = 16  # bytes, as kernels read them


class Layout:
    """Shapes and dtypes of one layer's state for one sequence, and where each tensor begins in a page."""

    def __init__(self, config: TTTConfig, operator: Operator, dtype: torch.dtype) -> None:
        self.operator, self._mini_batch, self._inner = operator, config.mini_batch, at_least_float32(dtype)
        device = torch.device("meta")
        weights = [torch.empty(shape, device=device, dtype=self._inner) for shape in config.weight_shapes.values()]
        caches = [None, None]
        if config.backbone == "mamba":
            caches = [empty_conv_cache(1, config.width, device, dtype) for _ in caches]  # type: ignore[misc]
        self._empty = LayerState(*caches, operator.generate_state(self._first(weights, 1)))
        tensors = _tensors(self._empty)
        self.shapes = [tuple(x.shape[1:]) for x in tensors]
        self.dtypes = [x.dtype for x in tensors]
        self.offsets, self.page_bytes = [], 0
        for x in tensors:
            self.offsets.append(self.page_bytes)
            self.page_bytes += -(-x.numel() * x.element_size() // ALIGNED) * ALIGNED

    def views(self, pages: Tensor) -> list[Tensor]:
        """The state's tensors [slots, ...] in pages [slots, bytes] int8."""
        spans = zip(self.offsets, self.shapes, self.dtypes, strict=True)
        return [
            pages[:, offset : offset + prod(shape) * dtype.itemsize].view(dtype).unflatten(1, shape)
            for offset, shape, dtype in spans
        ]

    def read(self, views: Sequence[Tensor], slots: Tensor, positions: Tensor) -> LayerState:
        """A copy of the states in slots [B] int64, for generate_step; positions [B] in the mini-batch."""
        each = iter(views)
        return _mapped(self._empty, lambda _: next(each).index_select(0, slots), positions)

    def write(self, views: Sequence[Tensor], slots: Tensor, state: LayerState) -> None:
        """Store states of generate_step in slots [B] int64."""
        for view, x in zip(views, _tensors(state), strict=True):
            view.index_copy_(0, slots, x)

    def before(self, block: TTTBlock, batch: int) -> LayerState:
        """The state before the first token, for forward."""
        weights = block.seq_modeling_block.learner_weights()
        caches = (self._empty.block_conv, self._empty.qk_conv)
        empty = (None if x is None else x.new_zeros(batch, *x.shape[1:], device=weights[0].device) for x in caches)
        return LayerState(*empty, self._first(weights, batch))

    def _first(self, weights: Sequence[Tensor], batch: int) -> Any:
        return self.operator.init_state(weights, batch, self._mini_batch, self._inner)


def hidden(model: TTTModel, layout: Layout, layers: Sequence[Sequence[Tensor]], ids: Tensor, step: Step) -> Tensor:
    """The residual stream [N, C] after the last block for the tokens ids [N] of a step; the slots' states move on.

    layers: each layer's `Layout.views`; without any, the step has one fresh run and its state is dropped.
    """
    h = model.model.embed_tokens(ids)
    count = len(step.slots)
    steps = h[:count, None]
    prompts = [h[run.token :][: run.count * run.length].unflatten(0, (run.count, run.length)) for run in step.runs]
    for index, block in enumerate(model.blocks):
        views = layers[index] if layers else []
        if count:
            state = layout.read(views, step.slots, step.positions)
            steps = block.generate_step(steps, model._rope, state, model.operator)
            layout.write(views, step.slots, state)
        for number, run in enumerate(step.runs):
            prompts[number] = _forward(model, layout, views, block, prompts[number], run, step.prompt_slots)
    return torch.cat([x.flatten(0, 1) for x in (steps, *prompts)])


def _forward(
    model: TTTModel, layout: Layout, views: Sequence[Tensor], block: TTTBlock, h: Tensor, run: Run, slots: Tensor
) -> Tensor:
    """One block on one run: the residual stream [count, length, C] before -> after."""
    slots = slots[run.first : run.first + run.count]
    if run.fresh:
        state = layout.before(block, run.count)
    else:
        positions = torch.full((run.count,), run.start, dtype=torch.int32, device=h.device)
        state = layout.read(views, slots, positions)
        if hasattr(state.inner, "to_state"):
            state = replace(state, inner=state.inner.to_state())
    h = block(h, model._rope, state, model.operator, run.start)
    if views:
        layout.write(views, slots, replace(state, inner=model.operator.generate_state(state.inner)))
    return h


def _tensors(state: LayerState) -> list[Tensor]:
    """Every tensor of a state except the position."""
    found: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        found.append(x)
        return x

    _mapped(state, keep, None)
    return found


def _mapped(state: Any, function: Callable[[Tensor], Tensor], positions: Tensor | None) -> Any:
    """`state` with `function` of each of its tensors, and with these positions [B] where they are given."""

    def one(name: str, x: Any) -> Any:
        if name != "position":
            return _mapped(x, function, positions)
        if positions is None:
            return x
        wide = positions.view(-1, *[1] * (x.ndim - 1)).expand(-1, *x.shape[1:])
        return wide.to(x.dtype, copy=True).contiguous()

    if isinstance(state, Tensor):
        return function(state)
    if is_dataclass(state):
        values = {field.name: one(field.name, getattr(state, field.name)) for field in fields(state)}
        return replace(cast(Any, state), **values)
    if isinstance(state, tuple):
        names: Iterator[str] | Sequence[str] = getattr(state, "_fields", [""] * len(state))
        parts = [one(name, x) for name, x in zip(names, state, strict=True)]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state
