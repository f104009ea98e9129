"""CUDA graphs for vLLM's short steps with prompts, which take longer to launch than to run."""

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
    """Return the (tokens, sequences) of the CUDA graph that runs a step of the given size.

    The graph has at least one sequence more than the step. The first extra sequence holds the padding,
    which has fewer than max(SMALLEST, tokens / 4) tokens.
    """
    part = max((1 << (tokens - 1).bit_length()) // 8, SMALLEST)
    return -(-tokens // part) * part, 1 << sequences.bit_length()


class PromptGraphs:
    """CUDA graphs of a model's steps with prompts, one graph for each result of `graph_size`.

    The first step of a size captures its graph. All graphs share memory.
    sequences: the most sequences per step.
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
        """Run a step; return its residual stream [n, C], which the next call overwrites.

        n: the step's tokens, at most MOST_TOKENS. C: the model's width.
        layers: each layer's states, from `Layout.state`. ids [N]: n token ids, then padding.
        """
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
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            run()
        self._memory = graph.pool()
        return graph.replay
