"""Time calls or CUDA graph replays with CUDA events, with a warm or a cold L2 cache."""

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from harness.measure.timer import Clock
from harness.schema.reason import of_exception

SPAN_MS = 1.0  # target length of a sample: events and the first launch after idle take microseconds
MAX_LAUNCHES = 256
_WARM_RUNS = 3
_ESTIMATES = 3
SETTLES_S = 2.0  # seconds of load until a power-capped GPU's clocks are steady
WAKES_S = 0.5  # seconds of load until an uncapped GPU's clocks have risen from idle
_LONG_S = 0.25  # seconds; a longer call is a sample of its own and needs no estimate

Call = Callable[[], object]


def launches_for(run_ms: float) -> int:
    """Return how many calls of `run_ms` milliseconds fill a sample of 1 ms, at least 1, at most 256."""
    return MAX_LAUNCHES if run_ms <= 0 else min(MAX_LAUNCHES, max(1, math.ceil(SPAN_MS / run_ms)))


def input_sets(set_bytes: int, l2_bytes: int) -> int:
    """Return how many copies of the inputs (`set_bytes` each) to rotate so that calls miss the L2."""
    # The other copies fill the cache twice, because an L2 does not replace exactly by LRU.
    return math.ceil(2 * l2_bytes / set_bytes) + 1


def l2_bytes() -> int:
    """Return the L2 cache size, in bytes, of torch's current CUDA device."""
    import torch

    return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size


class CudaEventClock(Clock):
    """Clock that times one callable on the current CUDA device with CUDA events.

    timing: "eager" times calls, including idle time of the GPU. "graph" times replays of a CUDA graph of the callable.
    l2: "warm" times several calls together. "cold" flushes the L2 cache before each call and times each call alone,
        which adds microseconds per call. For short calls, use "warm" and rotate `input_sets` copies of the inputs.
    """

    settles_s = SETTLES_S
    wakes_s = WAKES_S

    def __init__(self, timing: str = "eager", l2: str = "warm") -> None:
        self.replays = timing == "graph"
        self.launch: Call = lambda: None  # the work between two events, without a cache flush
        self._cold = l2 == "cold"
        self._flush_buffer: Any = None
        self._events: list[tuple[Any, Any]] = []

    def prepare(self, run: Call, took_s: float | None = None) -> None:
        """Prepare to sample `run`: choose `launches`; with timing "graph", capture a CUDA graph.

        took_s: seconds of a warm call of `run`; None to measure it. With timing "graph", it is always measured.
        """
        import torch

        self._events = _new_events(1)
        self.launch = run
        if took_s is None or self.replays:
            took_s = _first_runs(run)
        if self.replays:  # to estimate a replay, which can be much shorter than an eager call
            self.launch = _captured([run])
        is_long = took_s >= _LONG_S
        self.loaded_s = took_s if is_long else 0.0
        self.launches = 1 if is_long else launches_for(min(self._elapsed_ms() for _ in range(_ESTIMATES)))
        if self._cold:
            self.own_bytes = 2 * l2_bytes()
            self._flush_buffer = torch.empty(self.own_bytes, dtype=torch.uint8, device="cuda")
        self._events = _new_events(self.launches if self._cold else 1)
        batch = [run] * (1 if self._cold else self.launches)
        if not self.replays:
            self.launch = lambda: _run_all(batch)
        elif len(batch) > 1:
            self.launch = lambda: None  # frees the first graph's memory for the second
            self.launch = _captured(batch)

    def sample(self) -> float:
        return self._elapsed_ms() / self.launches

    def _elapsed_ms(self) -> float:
        for start, end in self._events:
            if self._flush_buffer is not None:
                self._flush_buffer.zero_()
            start.record()
            self.launch()
            end.record()
        self._events[-1][1].synchronize()
        return sum(start.elapsed_time(end) for start, end in self._events)


def wait_for(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _new_events(pairs: int) -> list[tuple[Any, Any]]:
    import torch

    return [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(pairs)]


def _run_all(batch: Sequence[Call]) -> None:
    for run in batch:
        run()  # its outputs are freed before the next call


@cache
def side_stream() -> Any:
    import torch

    return torch.cuda.Stream()  # for runs before a capture; only one, as cuBLAS allocates a workspace per stream


def graph_replay(run: Call) -> Call:
    """Warm up `run`, capture it in a CUDA graph, return the replay; without a GPU, return `run`."""
    import torch

    if not torch.cuda.is_available():
        return run
    with torch.inference_mode():
        _first_runs(run)
        return _captured([run])


def _first_runs(run: Call) -> float:
    import torch

    side = side_stream()
    side.wait_stream(torch.cuda.current_stream())
    for number in range(_WARM_RUNS):
        start = time.monotonic()
        with torch.cuda.stream(side):
            run()
        side.synchronize()
        took = time.monotonic() - start
        if number and took >= _LONG_S:  # the first run may have compiled
            break
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return took


def _captured(batch: Sequence[Call]) -> Call:
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            _run_all(batch)
    except Exception as error:  # ending a failed capture raises another error; its __context__ is the first
        why = of_exception(error.__context__ if isinstance(error.__context__, Exception) else error)
        raise RuntimeError(f"the work cannot be captured in a CUDA graph: {why}") from error
    return graph.replay
