"""Reference for long prompts: the TTT operator in PyTorch, replayed from CUDA graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.models.operator import OuterParameters, Projections, TorchOperator, ready_for_forward
from harness.measure.cuda_clock import graph_replay
from tk_kernels.checks import common_position
from tk_kernels.reference.token_rows import clone, mapped, overwrite

PIECE_TOKENS = 512  # maximum of tokens per replay, unless the mini-batch is longer


class ReplayedOperator(TorchOperator):
    """`TorchOperator` in the dual form that replays a CUDA graph for every PIECE_TOKENS tokens."""

    def __init__(self, learner: str) -> None:
        super().__init__(learner)
        # By the shape of q: the tensors that a graph reads and writes (inputs, state, outputs), and its replay.
        self._pieces: dict[torch.Size, tuple[list[Tensor], Any, Tensor, Callable[[], object]]] = {}

    def forward(self, projections: Projections, outer: OuterParameters, state: Any, start: int | None = None) -> Tensor:
        mini_batch = len(outer.token_scale)
        start = common_position(state.position, start, mini_batch)
        ready = ready_for_forward(projections, outer, state.position)
        size, tokens = max(1, PIECE_TOKENS // mini_batch) * mini_batch, ready.q.shape[1]
        whole = 0 if start else tokens // size * size
        out = torch.empty_like(ready.q)
        if whole:
            learned = outer.learned
            inputs, piece_state, piece_out, replay = self._piece([*(x[:, :size] for x in ready[:4]), *learned], state)
            overwrite(piece_state, state)
            for low in range(0, whole, size):
                for target, given in zip(inputs, (*(x[:, low : low + size] for x in ready[:4]), *learned), strict=True):
                    target.copy_(given)
                replay()
                out[:, low : low + size] = piece_out
            overwrite(state, piece_state)
        if whole < tokens:
            rest = mapped(ready, lambda x: x[:, whole:])
            out[:, whole:] = super().forward(rest, outer, state, start)
        return out

    def _piece(self, given: Sequence[Tensor], like: Any) -> tuple[list[Tensor], Any, Tensor, Callable[[], object]]:
        shape = given[0].shape
        if shape not in self._pieces:
            inputs, state, out = [x.clone() for x in given], clone(like), torch.empty_like(given[0])

            def advance() -> None:
                result, after = self._reference.forward(*inputs, state, start=0)
                out.copy_(result)
                overwrite(state, after)

            self._pieces[shape] = inputs, state, out, graph_replay(advance)
        return self._pieces[shape]
