"""Two chunks of a prompt at once, on two CUDA streams: the inner loop of one runs beside the products of the other.

A TTT kernel goes through a sequence with one block a head, so that few sequences leave most SMs idle for as long as
their chain of mini-batches takes. A chunk may enter a layer as soon as the chunk before has left it, which is all that
its state asks for.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_within: ContextVar[bool] = ContextVar("within", default=False)


def beside_another_chunk() -> bool:
    """Whether what is launched now runs beside another chunk's kernels."""
    return _within.get()


class Overlap:
    """The two streams, and how far the chunk before has come. Work of the current stream precedes all of it.

    What is allocated in a chunk belongs to its stream, whose next work waits for the stream that called `join`: its
    memory is free for others only then.
    """

    def __init__(self, device: torch.device) -> None:
        self._caller = torch.cuda.current_stream(device)
        self._streams = _streams(device)
        for stream in self._streams:
            stream.wait_stream(self._caller)
        self._chunks = 0
        self._left: dict[int, torch.cuda.Event] = {}  # of each layer, when the chunk before has left it

    @contextmanager
    def chunk(self) -> Iterator[None]:
        """Around the launches of the next chunk."""
        within = _within.set(True)
        try:
            with torch.cuda.stream(self._streams[self._chunks % 2]):
                yield
        finally:
            _within.reset(within)
        self._chunks += 1

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        """Around the launches of a layer, within `chunk`."""
        stream = self._streams[self._chunks % 2]
        if index in self._left:
            stream.wait_event(self._left[index])
        yield
        self._left[index] = stream.record_event()

    def join(self) -> None:
        """What the calling stream does next waits for all chunks."""
        for stream in self._streams:
            self._caller.wait_stream(stream)


@functools.cache
def _streams(device: torch.device) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return torch.cuda.Stream(device), torch.cuda.Stream(device)
