"""Reference for long prompts: the PyTorch operator as a replayed CUDA graph."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.models.operator import (
    Learner,
    Projections,
    TorchOperator,
    outer_parameters,
    ready_for_prefill,
)
from bench.systems.on_device import repeatable
from tk_kernels.checks import common_position
from tk_kernels.reference.token_rows import clone, overwrite

PIECE_TOKENS = 512  # tokens per replay: little memory, and copies in and out are cheap


class ReplayedOperator(TorchOperator):
    """`TorchOperator` in the dual form that replays CUDA graphs of about PIECE_TOKENS tokens.

    Tokens after the last whole piece, and prompts that begin inside a mini-batch, run without a graph.
    """

    def __init__(self, learner: str) -> None:
        super().__init__(learner)
        self._pieces: dict[torch.Size, _Piece] = {}

    def forward(self, projections: Projections, learner: Learner, state: Any, start: int | None = None) -> Tensor:
        mini_batch = len(learner.token_scale)
        start = common_position(state.position, start, mini_batch)
        ready = ready_for_prefill(projections, learner, state.position)
        size, tokens = max(1, PIECE_TOKENS // mini_batch) * mini_batch, ready.q.shape[1]
        whole = 0 if start else tokens // size * size
        out = torch.empty_like(ready.q)
        if whole:
            outer = outer_parameters(learner)
            piece = self._piece(_cut(ready, 0, size), outer, state)
            piece.begin(outer, state)
            for low in range(0, whole, size):
                out[:, low : low + size] = piece.through(_cut(ready, low, low + size))
            overwrite(state, piece.state)
        if whole < tokens:
            out[:, whole:] = super().forward(_cut(ready, whole, tokens), learner, state, start)
        return out

    def _piece(self, ready: Projections, outer: Sequence[Tensor], state: Any) -> "_Piece":
        shape = ready.q.shape
        if shape not in self._pieces:
            self._pieces[shape] = _Piece(self._reference, ready, outer, state)
        return self._pieces[shape]


class _Piece:
    """A CUDA graph with tensors of its own, over one piece from a mini-batch's start."""

    def __init__(self, reference: Any, ready: Projections, outer: Sequence[Tensor], state: Any) -> None:
        self._tokens = [x.clone() for x in ready[:4]]
        self._outer = [x.clone() for x in outer]
        self.state = clone(state)
        self._out = torch.empty_like(self._tokens[0])

        def advance() -> None:
            out, after = reference.forward(*self._tokens, *self._outer, self.state, start=0)
            self._out.copy_(out)
            overwrite(self.state, after)

        self._advance = repeatable(advance)

    def begin(self, outer: Sequence[Tensor], state: Any) -> None:
        for mine, given in zip(self._outer, outer, strict=True):
            mine.copy_(given)
        overwrite(self.state, state)

    def through(self, ready: Projections) -> Tensor:
        """Return the outputs, which the next call overwrites."""
        for mine, given in zip(self._tokens, ready[:4], strict=True):
            mine.copy_(given)
        self._advance()
        return self._out


def _cut(ready: Projections, low: int, high: int) -> Projections:
    q, k, v, lr = (x[:, low:high] for x in ready[:4])
    return Projections(q, k, v, lr, ready=True)
