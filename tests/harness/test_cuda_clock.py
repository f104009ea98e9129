from collections.abc import Callable
from contextlib import contextmanager
from statistics import median
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest

from harness.measure import cuda_clock, timer
from harness.measure.cuda_clock import CudaEventClock, input_sets, launches_for
from harness.measure.process_state import is_out_of_memory
from harness.measure.timer import measure, warm_up
from harness.schema.policy import Policy

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("run_ms", "launches"), [(10.0, 1), (1.0, 1), (0.3, 4), (0.05, 20), (0.0001, 256), (0.0, 256)])
def test_launches_for(run_ms: float, launches: int) -> None:
    assert launches_for(run_ms) == launches


def test_input_sets_replace_all_of_the_cache() -> None:
    sets = input_sets(set_bytes=30, l2_bytes=100)
    assert (sets - 1) * 30 >= 200
    assert input_sets(1000, 100) == 2


class FakeGpu:
    """A GPU whose time, in ms, passes only by launched work; `log` lists its actions in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 0.0
        self.log: list[str] = []
        self.recording: list[Callable[[], None]] | None = None
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                gpu.log.append("event")
                self.at = gpu.now_ms

            def synchronize(self) -> None:
                gpu.log.append("wait")

            def elapsed_time(self, end: Any) -> float:
                return end.at - self.at

        class Graph:
            def replay(self) -> None:
                gpu.log.append("replay")
                for work in self.body:
                    work()

        @contextmanager
        def graph(into: Any) -> Any:
            gpu.recording = into.body = []
            yield
            gpu.recording = None

        @contextmanager
        def on(stream: Any) -> Any:
            yield

        stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
        flush = SimpleNamespace(zero_=lambda: self._do("flush", 0.3))

        def allocate(size: int, dtype: Any, device: Any) -> Any:
            return flush

        fakes = {
            "Event": Event,
            "CUDAGraph": Graph,
            "graph": graph,
            "stream": on,
            "current_stream": lambda: stream,
            "current_device": lambda: 0,
            "synchronize": lambda: None,
            "get_device_properties": lambda device: SimpleNamespace(L2_cache_size=50),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr(cuda_clock, "side_stream", lambda: stream)
        for module in (cuda_clock, timer):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_ms / 1e3))
        monkeypatch.setattr(torch, "empty", allocate)

    def kernel(self, name: str, milliseconds: float) -> Callable[[], None]:
        def run() -> None:
            work = lambda: self._do(name, milliseconds)  # noqa: E731
            work() if self.recording is None else self.recording.append(work)

        return run

    def _do(self, name: str, milliseconds: float) -> None:
        self.log.append(name)
        self.now_ms += milliseconds


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def test_a_run_of_seconds_is_its_own_estimate(gpu: FakeGpu) -> None:
    CudaEventClock().prepare(gpu.kernel("a", 20_000.0))
    assert gpu.log.count("a") == 2  # the first call may have compiled


def test_compilation_does_not_count_as_an_estimate(gpu: FakeGpu) -> None:
    took = iter([3000.0])
    clock = CudaEventClock()
    clock.prepare(lambda: gpu.kernel("a", next(took, 0.125))())
    assert clock.launches == 8


def test_the_shortest_estimate_counts(gpu: FakeGpu) -> None:
    took = iter([0.125] * 3 + [2.0, 0.125, 2.0])
    clock = CudaEventClock()
    clock.prepare(lambda: gpu.kernel("a", next(took))())
    assert clock.launches == 8


def test_a_batch_of_eager_calls_keeps_no_outputs(gpu: FakeGpu) -> None:
    kernel, alive, most = gpu.kernel("a", 0.125), WeakSet[Any](), 0

    def run() -> Any:
        nonlocal most
        kernel()
        most = max(most, len(alive))
        alive.add(output := torch.zeros(1))
        return output

    clock = CudaEventClock()
    clock.prepare(run)
    clock.sample()
    assert (clock.launches, most) == (8, 0)


def test_first_runs_share_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLAS keeps memory for every stream that it has used: a new stream per case would raise the peak memory."""
    made: list[object] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda: made.append(object()) or made[-1])
    cuda_clock.side_stream.cache_clear()
    try:
        assert cuda_clock.side_stream() is cuda_clock.side_stream()
        assert len(made) == 1
    finally:
        cuda_clock.side_stream.cache_clear()


def test_the_first_runs_take_until_the_device_has_done_them(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SimpleNamespace(wait_stream=lambda other: None, synchronize=gpu.kernel("waited", 3000.0))
    monkeypatch.setattr(cuda_clock, "side_stream", lambda: slow)
    clock = CudaEventClock()
    clock.prepare(lambda: None)
    assert (clock.loaded_s, clock.launches, gpu.log) == (3.0, 1, ["waited"] * 2)


@pytest.mark.parametrize(
    ("timing", "l2", "run_ms", "log"),
    [
        ("eager", "warm", 5.0, ["event", "a", "event", "wait"]),
        ("eager", "warm", 0.02, ["event", *["a"] * 50, "event", "wait"]),
        ("graph", "warm", 0.02, ["event", "replay", *["a"] * 50, "event", "wait"]),
        ("eager", "cold", 0.5, ["flush", "event", "a", "event"] * 2 + ["wait"]),
        ("graph", "cold", 0.5, ["flush", "event", "replay", "a", "event"] * 2 + ["wait"]),
    ],
)
def test_short_launches_share_events_and_a_flush_is_outside_of_them(
    gpu: FakeGpu, timing: str, l2: str, run_ms: float, log: list[str]
) -> None:
    clock = CudaEventClock(timing, l2)
    clock.prepare(gpu.kernel("a", run_ms))
    gpu.log.clear()
    assert clock.sample() == pytest.approx(run_ms)
    assert (gpu.log, clock.launches) == (log, log.count("a"))
    assert clock.own_bytes == (100 if l2 == "cold" else 0)  # twice the cache


def test_launches_follow_the_time_of_a_replay_not_of_an_eager_call(gpu: FakeGpu) -> None:
    clock = CudaEventClock("graph")
    clock.prepare(lambda: gpu.kernel("a", 2.0 if gpu.recording is None else 0.125)())
    gpu.log.clear()
    assert clock.sample() == pytest.approx(0.125)
    assert clock.launches == gpu.log.count("a") == 8


@pytest.mark.parametrize("broken", [RuntimeError("operation not permitted"), torch.OutOfMemoryError("no memory")])
def test_a_failed_capture_names_its_first_failure(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, broken: Exception
) -> None:
    @contextmanager
    def graph(into: Any) -> Any:
        gpu.recording = []
        try:
            yield
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    def run() -> None:
        if gpu.recording is not None:
            raise broken
        gpu.kernel("a", 5.0)()

    monkeypatch.setattr(torch.cuda, "graph", graph)
    with pytest.raises(RuntimeError, match=f"cannot be captured in a CUDA graph: .*{broken}") as caught:
        CudaEventClock("graph").prepare(run)
    assert is_out_of_memory(caught.value) is isinstance(broken, torch.OutOfMemoryError)


@pytest.mark.parametrize("l2", ["warm", "cold"])
@pytest.mark.parametrize(("run_ms", "warmed_up_s"), [(5.0, 2.0), (100.0, 2.0), (1500.0, 3.0), (3000.0, 0.0)])
def test_a_gpu_is_loaded_until_its_power_controller_has_settled(
    gpu: FakeGpu, run_ms: float, warmed_up_s: float, l2: str
) -> None:
    clock = CudaEventClock(l2=l2)
    clock.prepare(gpu.kernel("a", run_ms))
    before = gpu.now_ms
    warm_up(clock, Policy(), lambda: True)
    assert (gpu.now_ms - before) / 1e3 == pytest.approx(warmed_up_s, rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("timing", ["eager", "graph"])
def test_device_sleep_is_measured_within_two_percent(timing: str) -> None:
    cycles = 5_000_000  # 2.5 ms: an eager sample has the first launch of its calls in it, some 10 us

    def run() -> None:
        torch.cuda._sleep(cycles)

    timing_of_one = measure(run, CudaEventClock(timing), Policy(budget_s=2))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(100):
        run()
    end.record()
    end.synchronize()
    assert median(timing_of_one.samples_ms) == pytest.approx(start.elapsed_time(end) / 100, rel=0.02)


@pytest.mark.gpu
def test_short_kernel_agrees_between_eager_batches_and_graphs() -> None:
    x = torch.randn(1 << 25, device="cuda")  # 90 us: longer than any host takes to launch it
    y = torch.empty_like(x)

    def run() -> None:
        torch.add(x, 1, out=y)

    medians = [median(measure(run, CudaEventClock(t), Policy(budget_s=2)).samples_ms) for t in ("eager", "graph")]
    assert medians[0] == pytest.approx(medians[1], rel=0.1)


@pytest.mark.gpu
def test_cold_is_slower_than_warm_for_a_small_copy() -> None:
    x = torch.randn(1 << 21, device="cuda")  # 8 MB: lives in the L2 when warm
    y = torch.empty_like(x)

    def run() -> None:
        y.copy_(x)

    warm, cold = (
        median(measure(run, CudaEventClock("graph", l2), Policy(budget_s=2)).samples_ms) for l2 in ("warm", "cold")
    )
    assert cold > 1.2 * warm
