"""Time GPU work with CUDA events around launches or graph replays, with the L2 cache in a known state."""

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from harness.schema.reason import of_exception

# Two events and the first launch after an idle GPU cost some microseconds: a sample of 1 ms keeps that below 1%.
SPAN_MS = 1.0
MAX_LAUNCHES = 256
_WARM_RUNS = 3
_ESTIMATES = 3
# A load at an H100's power cap makes its power controller swing, and the samples with it, even after ones that agreed.
# Steps of TTT-Linear, warmed up for 11 samples: at B = 512 (0.8 s) they still fell by 8%, from 5.06 to 4.72 ms, within
# half a second; at B = 1024 (1.5 s) they rose from 8.52 to 8.94 and fell to 8.59 ms.
SETTLES_S = 2.0
WAKES_S = 0.5  # below the cap nothing swings: the clocks only rise from those of rest
# A run this long is its own estimate: repeating it would spend minutes on what it has shown.
_LONG_S = 0.25

Call = Callable[[], object]


def launches_for(run_ms: float) -> int:
    """How many launches make a sample of about 1 ms; at most 256: capturing more would cost more than it shows."""
    return MAX_LAUNCHES if run_ms <= 0 else min(MAX_LAUNCHES, max(1, math.ceil(SPAN_MS / run_ms)))


def input_sets(set_bytes: int, l2_bytes: int) -> int:
    """Among how many input sets of `set_bytes` work must go round so that none is in an L2 of `l2_bytes` at its turn.

    The sets between two uses of one must replace all of the cache: twice its size, as its replacement is not exact.
    """
    if set_bytes < 1:
        raise ValueError(f"set_bytes {set_bytes}: must be at least 1")
    return math.ceil(2 * l2_bytes / set_bytes) + 1


def l2_bytes() -> int:
    """The size of the L2 cache of torch's current device."""
    import torch

    return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size


class CudaEventClock:
    """Samples of one callable on the current CUDA device, in ms of device time.

    timing: "eager" launches it as it is, the host's part included where the GPU waits for it; "graph" captures it and
    times replays. l2: "warm" leaves the cache as the work itself left it; "cold" writes a buffer of twice the L2
    before each launch, outside of the events. Below about 100 us that leaves the cost of the events in the sample:
    one call of such work should do many units of it, going round among `input_sets`.
    """

    settles_s = SETTLES_S
    wakes_s = WAKES_S

    def __init__(self, timing: str = "eager", l2: str = "warm") -> None:
        self.own_bytes = 0
        self.launches = 1
        self.loaded_s = 0.0
        self.replays = timing == "graph"
        self._cold = l2 == "cold"
        self._flush_buffer: Any = None
        self._events: list[tuple[Any, Any]] = []
        self._launch: Call = _nothing

    def prepare(self, run: Call, took_s: float | None = None) -> None:
        """Compile, choose the number of launches from a first estimate of one and, for "graph", capture them.

        took_s: of one call, where it has run often enough to launch it as it is; None: it runs to learn that.
        """
        self._events = self._new_events(1)
        self._launch = run
        if took_s is None or self.replays:
            took_s = _run_aside(run)
        if self.replays:  # a replay may take a tenth of a launch that waits for the host
            self._launch = _captured([run])
        is_long = took_s >= _LONG_S
        self.loaded_s = took_s if is_long else 0.0
        self.launches = 1 if is_long else launches_for(self._estimate_ms())
        self._flush_buffer = self._new_flush_buffer() if self._cold else None
        self._events = self._new_events(self.launches if self._cold else 1)
        batch = [run] * (1 if self._cold else self.launches)
        if not self.replays:
            self._launch = lambda: _each(batch)
        elif len(batch) > 1:
            self._launch = _nothing  # the first graph's memory is free for the second
            self._launch = _captured(batch)

    def launch(self) -> None:
        """Launch what lies between two events of a sample: its calls, or their replay; the cache as it is."""
        self._launch()

    def sample(self) -> float:
        """Milliseconds of one launch, the mean over `launches`."""
        return self._elapsed_ms() / self.launches

    def now(self) -> float:
        """Monotonic seconds of the host."""
        return time.monotonic()

    def _estimate_ms(self) -> float:
        return min(self._elapsed_ms() for _ in range(_ESTIMATES))

    def _elapsed_ms(self) -> float:
        for start, end in self._events:
            if self._flush_buffer is not None:
                self._flush_buffer.zero_()
            start.record()
            self._launch()
            end.record()
        self._events[-1][1].synchronize()
        return sum(start.elapsed_time(end) for start, end in self._events)

    def _new_events(self, pairs: int) -> list[tuple[Any, Any]]:
        import torch

        return [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(pairs)]

    def _new_flush_buffer(self) -> Any:
        import torch

        self.own_bytes = 2 * l2_bytes()
        return torch.empty(self.own_bytes, dtype=torch.uint8, device="cuda")


def wait_for(device: str) -> None:
    """Until the GPU has done its work, where `device` is "cuda"."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def _nothing() -> None:
    """What a clock launches before it is prepared."""


def _each(batch: Sequence[Call]) -> None:
    for run in batch:
        run()


@cache
def side_stream() -> Any:
    """The stream of first runs, one a process: cuBLAS keeps 32 MB for every stream that it has seen."""
    import torch

    return torch.cuda.Stream()


def repeatable(run: Call) -> Call:
    """The replay of a call as one CUDA graph, after the first calls, which compile."""
    _run_aside(run)
    return _captured([run])


def _run_aside(run: Call) -> float:
    """First runs on a side stream, as capture asks for: they compile, tune and allocate. Seconds of the last one."""
    import torch

    side = side_stream()
    side.wait_stream(torch.cuda.current_stream())
    for number in range(_WARM_RUNS):
        start = time.monotonic()
        with torch.cuda.stream(side):
            run()
        side.synchronize()
        took = time.monotonic() - start
        if number and took >= _LONG_S:  # the first may have spent it on compiling
            break
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return took


def _captured(batch: Sequence[Call]) -> Call:
    """The replay of all of `batch`; RuntimeError with what the first failure said where it cannot be captured."""
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            _each(batch)
    except Exception as error:  # that of ending the capture hides the one that broke it
        why = of_exception(error.__context__ if isinstance(error.__context__, Exception) else error)
        raise RuntimeError(f"the work cannot be captured in a CUDA graph: {why}") from error
    return graph.replay
