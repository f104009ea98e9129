import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from harness_helpers import case
from profile_helpers import WithTorch

from harness.measure.measured_case import CaseRun
from harness.measure.ranges import nvtx_range
from harness.measure.system import Workload
from harness.profiling import in_worker
from harness.profiling.in_worker import RUNS, WARM_RUNS
from harness.profiling.tools import kineto
from harness.profiling.tools.trace import Launched, Runs, last_runs, profile_fields
from harness.schema.policy import Policy
from harness.schema.profile import ProfileError
from harness.schema.work import Work


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    noted: list[str] = []

    @contextmanager
    def noting(name: str) -> Iterator[None]:
        noted.append(name)
        yield
        noted.append("end")

    monkeypatch.setattr(in_worker, "nvtx_range", noting)
    monkeypatch.setattr(in_worker, "profiler_range", noting)
    return noted


def test_nsight_captures_a_call_under_ranges_and_then_the_timed_runs(events: list[str]) -> None:
    workload = Workload(run=lambda: events.append("run"), units=16)
    call = ["forward", "run", "end"]
    found = in_worker.profile(case(), workload, tool="nsys")
    seen = {"runs": RUNS, "units": 16, "calls": 1, "wall_us": [], "alone_us": 0.0, "replayed": False}
    assert found == {"run_info": seen, "apart": True, "notes": [], "work": {}, "ceilings": {}}
    assert events == [*call * WARM_RUNS, "cpu", *call, "lead", "end", "timed", *["run"] * RUNS, "end", "end"]
    events.clear()
    assert in_worker.profile(case(), workload, tool="ncu") == {"notes": [], "work": {}, "ceilings": {}}
    assert events == [*call * WARM_RUNS, "cpu", *call, "end"]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(work: Any, run: Any) -> None:
        work.lead, work.runs = 4, 6

    monkeypatch.setattr(in_worker._Work, "load", load)


def test_kineto_profiles_the_last_runs_without_pauses(monkeypatch: pytest.MonkeyPatch, loaded: None) -> None:
    launched: list[Launched] = []
    now = 0.0

    def run() -> None:
        nonlocal now
        took = 20.0 if len(launched) < WARM_RUNS + 1 + 8 else 10.0
        launched.append(Launched("kernel", now, now + took, took))
        now += took + 2

    def pause(device: str) -> None:
        nonlocal now
        now += 500

    @contextmanager
    def recording(device: str, with_ranges: bool, keep: Any = None, before: Any = None) -> Iterator[Any]:
        if before:
            before()
        found, start = list[Launched](), len(launched)
        yield found
        found += launched[start:]

    class TwoCalls:
        launches = 2
        wakes_s = settles_s = 0.0
        loaded_s = 10.0  # so the clock needs no warm-up
        alone_ms = 0.011

        def __init__(self, timing: str) -> None:
            assert timing == "graph"
            self.now = itertools.count().__next__

        def prepare(self, call: Any, took_s: float) -> None:
            self.launch = lambda: [call(), call()]

        def sample(self) -> float:
            return self.alone_ms

    monkeypatch.setattr(in_worker, "CudaEventClock", TwoCalls)
    monkeypatch.setattr(in_worker, "wait_for", pause)
    monkeypatch.setattr(kineto, "recording", recording)
    workload = Workload(run=run, units=16, device="cuda")
    found = in_worker.profile(case(timing="graph"), workload)
    assert len(launched) == WARM_RUNS + 1 + 2 * (4 + 6)
    assert found["units"] == 4 * 2 * 16  # four of six runs, of two calls
    assert [(kernel.launches, kernel.time_us) for kernel in found["kernels"]] == [(8, 80.0)]
    assert (found["region_us"], found["busy_us"], found["longest_gap_us"]) == (88.0, 80.0, 2.0)
    assert len(found["timeline"].kernel) == 1  # of one call
    assert found["notes"] == []
    TwoCalls.alone_ms = 0.0105
    again = in_worker.profile(case(timing="graph"), workload)
    assert (again["region_us"], again["busy_us"], again["longest_gap_us"]) == (84.0, 80.0, 1.0)
    assert again["notes"][0].startswith("a run took 5% longer under the profiler")


@pytest.mark.parametrize(("steps", "counted"), [(1, [0]), (2, [0, 1]), (16, [14, 15])])
def test_nsight_counts_in_the_last_steps_of_a_call(
    monkeypatch: pytest.MonkeyPatch, steps: int, counted: list[int]
) -> None:
    inside = False
    seen: list[int] = []

    @contextmanager
    def region(device: str) -> Iterator[None]:
        nonlocal inside
        inside = True
        yield
        inside = False

    def run() -> None:
        seen.clear()
        for step in range(steps):
            for layer in range(3):
                with nvtx_range(f"layer {layer}"):
                    if inside and layer == 1:
                        seen.append(step)

    monkeypatch.setattr(in_worker, "profiler_range", region)
    workload = Workload(run=run, units=steps)
    found = in_worker.profile(case(phase="generate"), workload, tool="ncu")
    assert (found["notes"], seen, inside) == ([], counted, False)


def test_a_gpu_is_loaded_before_profiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_worker, "SETTLES_S", 20)
    monkeypatch.setattr(in_worker, "WAKES_S", 10)
    monkeypatch.setattr(in_worker, "RUNS_S", 7)
    monkeypatch.setattr(in_worker, "wait_for", lambda device: None)
    calls: list[str] = []  # each takes a second
    monkeypatch.setattr(in_worker, "time", SimpleNamespace(monotonic=lambda: len(calls)))
    on_gpu, on_cpu = (in_worker._Work(case(), Workload(run=print, device=device)) for device in ("cuda", "cpu"))
    on_gpu.load(lambda: calls.append("run"))
    assert (len(calls), on_gpu.lead, on_gpu.runs) == (20, 10, 7)
    monkeypatch.setattr(in_worker, "RUNS_S", 0.25)
    calls.clear()
    on_gpu.load(lambda: calls.append("run"))
    assert on_gpu.runs == 5  # five runs take 5 of 6 seconds
    monkeypatch.setattr(in_worker, "LONGEST_S", 2.5)
    calls.clear()
    on_gpu.load(lambda: calls.append("run"))
    assert on_gpu.runs == 2
    calls.clear()
    monkeypatch.setattr(in_worker, "CAPPED_S", 4.0)
    on_gpu.throttled = lambda: len(calls) == 7  # one run is power-capped
    on_gpu.load(lambda: calls.append("run"))
    assert (on_gpu.lead, on_gpu.runs) == (20, 4)
    calls.clear()
    on_cpu.load(lambda: calls.append("run"))
    assert (len(calls), on_cpu.lead, on_cpu.runs) == (0, 0, RUNS)


def test_runs_are_synchronized_as_in_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    runs: list[str] = []
    monkeypatch.setattr(in_worker, "wait_for", lambda device: waits.append(len(runs)))
    work = in_worker._Work(case(), Workload(run=print, device="cuda"))
    work.repeat(lambda: runs.append("run"), 3)
    assert (len(runs), waits) == (3, [1, 2, 3])


@pytest.mark.parametrize(
    ("lead", "runs", "most", "window"),
    [
        (500, 250, 20_000, (500, 250)),
        (500, 250, 100, (25, 75)),  # launches per run, too many to record all runs
        (7, 5, 5, (1, 4)),
        (7, 5, 2, (1, 1)),
        (7, 5, 1, (0, 1)),
    ],
)
def test_lead_in_and_runs_fit_the_limit(lead: int, runs: int, most: int, window: tuple[int, int]) -> None:
    work = in_worker._Work(case(), Workload(run=print))
    work.lead, work.runs = lead, runs
    assert work.window(most) == window


def kernels(*times: float, apart: float = 100.0) -> list[Launched]:
    return [Launched("kernel", apart * place, apart * place + time, time) for place, time in enumerate(times)]


def test_pauses_between_runs_are_removed() -> None:
    starts = [0, 11, 100, 112, 300, 315, 400, 413]  # kernels of 10 us; two calls of one kernel make a run
    launched = [Launched("kernel", float(start), start + 10.0, 10.0) for start in starts]
    found = profile_fields(launched, launched[:1], Runs(4, units=3, calls=2))
    assert (found["units"], found["region_us"], found["busy_us"], found["longest_gap_us"]) == (12, 45.0, 40.0, 3.0)
    assert (found["notes"], found["timeline"].wait_ns) == ([], (0,))  # of one call
    three = profile_fields(launched[:6], launched[:1], Runs(3, calls=2))
    assert (three["units"], three["region_us"], three["longest_gap_us"]) == (2, 22.0, 2.0)


@pytest.mark.parametrize("times", [[10.0] * 5, [10.0, 10.0, 10.0, 10.0, 10.0, 10.0]])
def test_runs_with_different_kernels_all_count(times: list[float]) -> None:
    launched = kernels(*times)
    if len(times) == 6:  # with equal kernels, two runs of three could be separated
        launched[-1] = Launched("another", 500.0, 510.0, 10.0)
    for wall_us, region_us, pauses in (
        ((), 100.0 * len(times) - 90.0, "pauses between them count"),
        ([40.0, 50.0], 90.0, ""),
    ):
        found = profile_fields(launched, launched[:1], Runs(2, wall_us=wall_us))
        assert (found["units"], found["region_us"], found["busy_us"]) == (2, region_us, 10.0 * len(times))
        assert "runs launch different kernels" in found["notes"][0]
        assert ("pauses" in found["notes"][0]) is bool(pauses)
    assert profile_fields(launched, [], Runs(2, wall_us=[1.0, 2.0]))["region_us"] == 10.0 * len(times)


def test_delayed_runs_do_not_count() -> None:
    launched = kernels(10.0, 30.0, 11.0, 12.0, 10.5, 9.0, 10.6, 11.5)
    found = profile_fields(launched, [], Runs(8))
    assert (found["units"], found["region_us"]) == (4, pytest.approx(43.6))  # 11, 10.5, 10.6, 11.5
    assert [kernel.launches for kernel in found["kernels"]] == [4]
    assert profile_fields(launched[:3], [], Runs(3))["region_us"] == 11.0
    assert profile_fields(launched[:2], [], Runs(2))["region_us"] == 40.0


def test_an_engines_own_time_counts() -> None:
    found = profile_fields(kernels(*[20.0] * 5), [], Runs(5, wall_us=[40.0, 90.0, 41.0, 15.0, 42.0]))
    assert (found["units"], found["region_us"], found["busy_us"]) == (3, 123.0, 60.0)
    assert profile_fields(kernels(20.0), [], Runs(1, wall_us=[35.0]))["region_us"] == 35.0
    assert profile_fields(kernels(20.0), [], Runs(1, wall_us=[15.0]))["region_us"] == 20.0  # at least its kernels


@pytest.mark.parametrize(
    ("alone_us", "region_us", "note"),
    [
        (0.0, 120.0, ""),
        (50.0, 120.0, ""),
        (39.0, 120.0, ""),  # within the variation of clocks
        (19.5, 60.0, "a run took 105% longer under the profiler: the added idle time"),
        (30.0, 90.0, "a run took 33% longer under the profiler: the added idle time"),
        (15.0, 60.0, "a run took 167% longer under the profiler: its kernels were slower"),
    ],
)
def test_delays_by_the_profiler_are_not_idle_time(alone_us: float, region_us: float, note: str) -> None:
    found = profile_fields(kernels(*[20.0] * 5), [], Runs(5, 7, wall_us=[40.0] * 5, alone_us=alone_us))
    assert (found["units"], found["region_us"], found["busy_us"]) == (21, region_us, 60.0)
    assert [each.startswith(note) for each in found["notes"]] == ([True] if note else [])


def test_idle_time_of_a_graph_is_bounded_by_its_own_time() -> None:
    launched = kernels(*[20.0] * 3, apart=40.0)
    for replayed, region_us in ((False, 100.0), (True, 98.0)):
        found = profile_fields(launched, [], Runs(1, alone_us=98.0, replayed=replayed))
        assert (found["region_us"], found["busy_us"], found["notes"]) == (region_us, 60.0, [])


def test_the_longest_idle_time_shrinks_with_the_rest() -> None:
    launched = kernels(20.0, 20.0, 20.0, apart=60.0)  # 40 us apart
    for alone_us, longest in ((0.0, 40.0), (100.0, 20.0)):
        found = profile_fields(launched, [], Runs(1, wall_us=[140.0], alone_us=alone_us))
        assert found["longest_gap_us"] == pytest.approx(longest)


def test_a_run_ends_with_the_last_kernel_of_any_stream() -> None:
    launched = [
        *(Launched(name, start, end, end - start) for name, start, end in (("a", 0.0, 30.0), ("b", 5.0, 10.0))),
        *(Launched(name, start, end, end - start) for name, start, end in (("a", 100.0, 110.0), ("b", 102.0, 125.0))),
    ]
    found = profile_fields(launched, [], Runs(2))
    assert (found["region_us"], found["busy_us"], found["longest_gap_us"]) == (55.0, 55.0, 0.0)


def test_only_the_last_runs_count() -> None:
    launched = [
        Launched(f"kernel {number % 2}", 10.0 * number, 10.0 * number + 9, 9.0) for number in (5, 4, 0, 1, 2, 3)
    ]
    last, runs = last_runs(launched, runs=1, recorded=3)
    assert ([each.start_us for each in last], runs) == ([40.0, 50.0], 1)
    assert last_runs(launched, runs=1, recorded=4) == (launched, 4)  # six launches are not divisible by four
    assert last_runs(launched, runs=1, recorded=6) == (launched, 6)  # the runs launch different kernels


def test_an_engine_without_a_batch_for_a_profiler_is_refused() -> None:
    workload = Workload(run=print, engine_samples=lambda: [[1.0]])
    with pytest.raises(ProfileError, match="engine_batch"):
        in_worker.profile(case(timing="engine"), workload)


@pytest.fixture
def engine(events: list[str], monkeypatch: pytest.MonkeyPatch) -> Workload:
    monkeypatch.setattr(in_worker, "ALONE", Policy(budget_s=0.0))

    def batch(around: AbstractContextManager[object]) -> int:
        events.append("prompts")
        with around:
            events.append("steps")
        return 7

    def samples() -> Iterator[list[float]]:
        for first_ms in (50.0, 2.0):
            events.append("sampled")
            yield [first_ms, 2.0, 2.0, 2.0, 30.0]

    return Workload(run=pytest.fail, engine_samples=samples, engine_batch=batch)


@pytest.mark.parametrize("tool", ["nsys", "ncu"])
def test_only_an_engines_steady_steps_are_profiled(
    events: list[str], engine: Workload, tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = in_worker.profile(case(phase="generate", timing="engine"), engine, tool=tool)
    alone = [] if tool == "ncu" else ["sampled"] * 2
    assert events == ["prompts", "steps", *alone, "prompts", "cpu", "generate", "steps", "end", "end"]
    assert found["notes"] == []
    if tool == "nsys":
        (wall_us,) = found["run_info"].pop("wall_us")
        assert wall_us > 0
        seen = {"runs": 1, "units": 7, "calls": 1, "alone_us": pytest.approx(7 * 2e3), "replayed": False}
        assert found["run_info"] == seen
        assert found["apart"] is False


def test_prompts_of_an_engine_have_a_lead_in(
    events: list[str], engine: Workload, loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0.0, 2.0)  # a batch reads it twice
    monkeypatch.setattr(in_worker, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(in_worker, "wait_for", lambda device: None)
    found = in_worker.profile(case(timing="engine"), engine, tool="nsys")
    batch = ["prompts", "steps"]
    assert events == [
        *(*batch, "sampled", "sampled", "cpu", "prompts", "forward", "steps", "end"),
        *("lead", *batch * 4, "end", "timed", *batch * 6, "end", "end"),
    ]
    seen = {"runs": 6, "units": 7, "calls": 1, "wall_us": [2e6] * 6, "alone_us": 7 * 2e3, "replayed": False}
    assert found["run_info"] == seen


@pytest.mark.parametrize("phase", ["forward", "generate"])
def test_kineto_times_an_engine_without_its_ranges(
    phase: str, engine: Workload, loaded: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings: list[bool] = []
    launched = [Launched("kernel", float(start), start + 3.0, 3.0) for start in range(0, 100, 10)]

    @contextmanager
    def recording(device: str, with_ranges: bool, keep: Any = None, before: Any = None) -> Iterator[Any]:
        recordings.append(with_ranges)
        if before:
            before()
        yield launched if phase == "forward" and not with_ranges else launched[:1]

    monkeypatch.setattr(in_worker, "wait_for", lambda device: None)
    monkeypatch.setattr(kineto, "recording", recording)
    monkeypatch.setattr(in_worker, "time", SimpleNamespace(monotonic=itertools.count(0.0, 1e-5).__next__))
    monkeypatch.setattr(in_worker, "SETTLES_S", 1e-3)
    engine.device = "cuda"
    found = in_worker.profile(case(phase=phase, timing="engine"), engine)
    assert recordings == [True, False]
    runs = 4 if phase == "forward" else 1  # the middle four of six
    assert (found["units"], found["region_us"]) == (runs * 7, pytest.approx(runs * 10.0))
    assert (found["busy_us"], found["kernels"][0].launches) == (3.0 * runs, runs)


def test_a_profiled_case_is_not_timed() -> None:
    pytest.importorskip("torch")
    run = CaseRun(case(l2="cold"), Policy(), "profile", in_worker.profile)
    record = run.record(WithTorch())
    assert (record.status, record.samples_ms, record.check) == ("ok", [], None)
    assert "not cold" in run.profile["notes"][0]
    assert run.profile["units"] == 1
    assert run.profile["work"] == {"products": Work(1e6, 2e4)}
    assert len(run.profile["timeline"].kernel) == sum(each.launches for each in run.profile["kernels"])
    assert any(kernel.name == "aten::mm" for kernel in run.profile["kernels"])
