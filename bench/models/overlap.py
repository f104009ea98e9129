"""Run two prompt chunks on two CUDA streams, so a chunk's GEMMs overlap the other's inner loop.

A TTT kernel has one thread block per head and sequence, so few sequences leave most SMs idle. A chunk may enter a layer
once the previous chunk has left this layer, because only the layer's state connects the chunks.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_within: ContextVar[bool] = ContextVar("within", default=False)


def is_overlapped() -> bool:
    """Return whether the caller is inside `Overlap.chunk`, where another chunk shares the GPU."""
    return _within.get()


class Overlap:
    """Two CUDA streams, on which the chunks of a prompt alternate.

    Both streams first wait for the calling stream. After `join`, the calling stream may reuse the chunks' memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._caller = torch.cuda.current_stream(device)
        self._streams = _streams(device)
        for stream in self._streams:
            stream.wait_stream(self._caller)
        self._chunks = 0
        self._left: dict[int, torch.cuda.Event] = {}  # by layer: recorded when the last chunk leaves it

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """Run the launches in this context as the next chunk, on that chunk's stream."""
        within = _within.set(True)
        try:
            with torch.cuda.stream(self._streams[self._chunks % 2]):
                yield
        finally:
            _within.reset(within)
        self._chunks += 1

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        """Run this context's launches after the prompt's previous chunk has left layer `index`."""
        stream = self._streams[self._chunks % 2]
        if index in self._left:
            stream.wait_event(self._left[index])
        yield
        self._left[index] = stream.record_event()

    def join(self) -> None:
        """Make the calling stream wait for the kernels of all chunks."""
        for stream in self._streams:
            self._caller.wait_stream(stream)


@functools.cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return torch.cuda.Stream(device), torch.cuda.Stream(device)
