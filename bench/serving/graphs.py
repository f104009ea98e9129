"""CUDA graphs of short steps with prompts, whose kernels take longer to launch than to run."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.models.ttt import BlockState, TTTModel
from bench.serving.pages import hidden
from tk_kernels.packed import Packed

MOST_TOKENS = 4096  # with more tokens in a step, an H200 takes longer to run a 1.3b model's kernels than to launch them
SMALLEST = 128  # tokens of the smallest graph


def graph_size(tokens: int, sequences: int) -> tuple[int, int]:
    """Return (tokens, sequences) of the CUDA graph for a step with these tokens and sequences.

    The graph has one or more spare sequences. The first holds the padding, fewer than max(SMALLEST, tokens / 4) tokens.
    """
    part = max((1 << (tokens - 1).bit_length()) // 8, SMALLEST)
    return -(-tokens // part) * part, 1 << sequences.bit_length()


class PromptGraphs:
    """CUDA graphs of one model's steps with prompts, for up to `sequences` sequences per step.

    The graphs share memory. The first step of a size captures its graph, and takes up to twice as long as without one.
    """

    def __init__(self, model: TTTModel, sequences: int) -> None:
        self._model = model
        self._graphs: dict[tuple[int, int], Callable[[], None]] = {}
        self._memory: Any = None  # of the graphs' tensors
        most = graph_size(MOST_TOKENS, sequences)[1]
        new = partial(torch.zeros, device=model.device)
        self._ids, self._cu_seqlens = new(MOST_TOKENS, dtype=torch.int64), new(most + 1, dtype=torch.int32)
        self._start, self._slots = new(most, dtype=torch.int32), new(most, dtype=torch.int64)
        self._out = new((MOST_TOKENS, model.config.width), dtype=model.dtype)

    def hidden(self, layers: Sequence[BlockState], ids: Tensor, step: Packed) -> Tensor:
        """Return a step's residual stream [n, C], valid until the next call; n is up to MOST_TOKENS."""
        size = tokens, sequences = graph_size(step.tokens, len(step.slots))
        # The first surplus sequence holds the padding tokens, the others none. They use slot 0, which is spare.
        for buffer, given, surplus in (
            (self._ids, ids[: step.tokens], 0),
            (self._cu_seqlens, step.cu_seqlens, tokens),
            (self._start, step.start, 0),
            (self._slots, step.slots, 0),
        ):
            buffer[: len(given)] = given
            buffer[len(given) :] = surplus
        if size not in self._graphs:
            self._graphs[size] = self._captured(partial(self._run, layers, tokens, sequences))
        self._graphs[size]()
        return self._out[: step.tokens]

    def _run(self, layers: Sequence[BlockState], tokens: int, sequences: int) -> None:
        step = Packed(self._cu_seqlens[: sequences + 1], self._start[:sequences], self._slots[:sequences], tokens)
        self._out[:tokens] = hidden(self._model, layers, self._ids, step)

    def _captured(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture a CUDA graph of `run` without running it; return a function that replays it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            run()
        self._memory = graph.pool()
        return graph.replay
