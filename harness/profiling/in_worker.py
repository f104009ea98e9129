"""Run a case under a profiler in the worker."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

from harness.measure.cuda_clock import SETTLES_S, WAKES_S, CudaEventClock, wait_for
from harness.measure.ranges import COUNTED_LAYER, LEAD, TIMED, nvtx_range, on_range, profiler_range, recorded
from harness.measure.system import Workload
from harness.measure.timer import Clock, never_throttled, take_engine_samples, take_samples, warm_up, warm_up_engine
from harness.profiling.tools import kineto
from harness.profiling.tools.trace import Runs, last_runs, profile_fields, region_fields
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.profile import ProfileError
from harness.schema.work import PEAKS

WARM_RUNS = 3
RUNS = 5  # minimum profiled runs, so that `trace` can drop the shortest and the longest
RUNS_S = 0.25  # minimum seconds of profiled runs
CAPPED_S = 1.0  # the same on a power-capped GPU, whose clocks vary
LONGEST_S = 6.0  # maximum seconds for RUNS runs: if they take longer, fewer are profiled
ALONE = Policy(budget_s=1.0)  # to time runs without a profiler
MAX_KERNELS = 20_000  # maximum kernels in Kineto's trace: larger traces take long to read
COUNTED_STEPS = 2  # last generate steps that Nsight Compute counts: the last of a mini-batch does additional work
_LONG_S = 1.0  # seconds; after a longer run, no further warm-up is needed

Found = TypeVar("Found")


def profile(
    case: Case,
    workload: Workload,
    throttled: Callable[[], bool] = never_throttled,
    *,
    tool: Literal["kineto", "nsys", "ncu"] = "kineto",
    keep: str = "",
) -> dict[str, Any]:
    """Run the case for a profiler; return values for its `Profile`.

    tool: "kineto" records in this process, and the values include kernels and times. "nsys" or "ncu" is the program
        that started this worker: it records the blocks of `profiler_range` and writes its own report.
    throttled: returns whether the GPU is throttled.
    keep: path for Kineto's trace, "" to discard the trace.
    Raises ProfileError if the trace is empty, or if an engine has no `Workload.engine_batch`.
    """
    work = _Work(case, workload, throttled)
    work.warm()
    if tool != "ncu":
        work.time_alone()
    if tool == "kineto":
        found = _by_kineto(work, Path(keep) if keep else None)
    else:
        found = _captured(work) if tool == "nsys" else _counted(work)
    notes = ["profiled with a warm L2 cache, not cold"] if case.l2 == "cold" else []
    peaks = {name: workload.metrics[name] for name in PEAKS if name in workload.metrics}
    return found | {"notes": [*notes, *found.get("notes", ())], "work": dict(workload.work), "ceilings": peaks}


class _Work:
    def __init__(self, case: Case, workload: Workload, throttled: Callable[[], bool] = never_throttled) -> None:
        self.case, self.workload, self.throttled = case, workload, throttled
        self.device = workload.device
        self.is_engine = workload.engine_samples is not None
        if self.is_engine and workload.engine_batch is None:
            raise ProfileError("the system times itself; a profiler then needs Workload.engine_batch")
        # An engine's generate follows its forward; one region contains all generate steps of the batch.
        self.is_engine_generate = self.is_engine and case.phase == "generate"
        self.units = workload.units
        self.passes = 0  # passes of a call through the counted layer
        self.call_s = 0.0  # seconds of a call under its ranges
        self.calls = 1  # calls of a run
        self.lead = 0  # unprofiled runs before the profiled ones
        self.runs = RUNS
        self.wall_us: list[float] = []  # wall time of each run of an engine
        self.clock: CudaEventClock | None = None  # except for engines and CPUs
        self.alone_us = 0.0  # time of a run without a profiler

    def warm(self) -> None:
        """Run one engine batch, or up to `WARM_RUNS` calls, whose last one sets `passes` and `call_s`."""
        if self.is_engine:
            self._once(nullcontext())
            return
        for _ in range(WARM_RUNS):
            start = time.monotonic()
            entered: list[str] = []
            # With ranges, because torch.compile may compile anew for them.
            with recorded(), on_range(entered.append):
                self.ranged(nullcontext())
            self.passes = entered.count(COUNTED_LAYER)
            wait_for(self.device)
            self.call_s = time.monotonic() - start
            if self.call_s > _LONG_S:
                break

    def time_alone(self) -> None:
        if self.workload.engine_samples is not None:
            batches = iter(self.workload.engine_samples())
            warm_up_engine(batches, ALONE, CudaEventClock() if self.device == "cuda" else Clock(), self.throttled)
            timing = take_engine_samples(batches, ALONE, self.throttled, self.workload.units)
            self.alone_us = median(timing.samples_ms) * 1e3 * self.units
        elif self.device == "cuda":
            self.clock = CudaEventClock(self.case.timing)
            self.clock.prepare(self.workload.run, self.call_s)
            self.calls = self.clock.launches
            warm_up(self.clock, ALONE, self.throttled)
            self.alone_us = median(take_samples(self.clock, ALONE, self.throttled).samples_ms) * 1e3 * self.calls

    def timed(self) -> Callable[[], object]:
        if self.is_engine:
            return lambda: self._once(self._wall_timed())
        return self.clock.launch if self.clock else self.workload.run

    def load(self, run: Callable[[], object]) -> None:
        """On a GPU, call `run` until clocks settle; then set the numbers of lead-in and profiled runs."""
        start, runs, took_s, capped = time.monotonic(), 0, 0.0, False
        while self.device == "cuda" and took_s < SETTLES_S:
            capped = self.repeat(run, 1) or capped
            runs, took_s = runs + 1, time.monotonic() - start
        if runs:
            each_s = took_s / runs
            # Lead-in runs settle the clocks again: the GPU is idle while the profiler is turned on.
            self.lead = math.ceil((SETTLES_S if capped else WAKES_S) / each_s)
            least = math.ceil((CAPPED_S if capped else RUNS_S) / each_s)
            self.runs = max(least, min(RUNS, int(LONGEST_S / each_s)))

    def window(self, limit: int = sys.maxsize) -> tuple[int, int]:
        """Return the numbers of lead-in and of profiled runs, in total at most `limit`."""
        runs = min(self.runs, max(1, limit - max(1, limit // 4)))
        return min(self.lead, limit - runs), runs

    def repeat(self, run: Callable[[], object], runs: int) -> bool:
        throttled = False
        for _ in range(runs):
            run()
            wait_for(self.device)
            throttled = self.throttled() or throttled
        return throttled

    def run_info(self, runs: int) -> Runs:
        return Runs(runs, self.units, self.calls, self.wall_us[-runs:], self.alone_us, self.case.timing == "graph")

    def ranged(self, region: AbstractContextManager[Found]) -> Found:
        """Run once in `region` and the phase's NVTX range; return the value that `region` yields."""
        entered: list[Found] = []

        @contextmanager
        def inside() -> Iterator[None]:
            with region as found, nvtx_range(self.case.phase):
                entered.append(found)
                with self._wall_timed():
                    yield

        self._once(inside())
        return entered[0]

    def _once(self, around: AbstractContextManager[object]) -> None:
        if self.workload.engine_batch is None:
            with around:
                self.workload.run()
        else:
            self.units = self.workload.engine_batch(around)

    @contextmanager
    def _wall_timed(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        if self.is_engine:
            self.wall_us.append((time.monotonic() - start) * 1e6)


def _by_kineto(work: _Work, keep: Path | None) -> dict[str, Any]:
    on_cpu = work.device == "cpu"
    ranged = work.ranged(kineto.recording(work.device, with_ranges=True, keep=keep if on_cpu else None))
    if on_cpu:
        return region_fields(ranged, ranged) | {"units": work.units}
    if work.is_engine_generate:
        # Recording ranges slows a CPU-bound engine, so times come from a second batch without ranges.
        found = work.ranged(kineto.recording(work.device, with_ranges=False, keep=keep))
        return profile_fields(found, ranged, work.run_info(1))
    run = work.timed()
    most = max(1, MAX_KERNELS // max(1, len(ranged) * work.calls))
    with kineto.recording(work.device, with_ranges=False, keep=keep, before=lambda: work.load(run)) as found:
        lead, runs = work.window(most)
        work.repeat(run, lead + runs)
    launched, runs = last_runs(found, runs, lead + runs)
    return profile_fields(launched, ranged, work.run_info(runs))


def _counted(work: _Work) -> dict[str, Any]:
    """Run one call under Nsight Compute; profile its last part, or all of it.

    Profiling starts at the second-last pass through the layer `COUNTED_LAYER`, or at the only pass. Without a pass, and
    in an engine, the whole call is profiled. Return {}: the counters are in Nsight Compute's report.
    """
    first, passes = max(0, work.passes - COUNTED_STEPS), 0
    with ExitStack() as region:

        def entered(name: str) -> None:
            nonlocal passes
            if name == COUNTED_LAYER:
                if passes == first:
                    region.enter_context(profiler_range(work.device))
                passes += 1

        with on_range(entered):
            work.ranged(nullcontext() if work.passes else profiler_range(work.device))
    return {}


def _captured(work: _Work) -> dict[str, Any]:
    """Run one call with NVTX ranges and then the timed runs, while Nsight Systems captures.

    Return {"run_info": the fields of `Runs` for the timed runs, "apart": whether these are separate from the call}.
    In an engine's generate phase, one batch is both the call and the only timed run, and "apart" is False.
    """
    if work.is_engine_generate:
        work.ranged(profiler_range(work.device))
        return {"run_info": asdict(work.run_info(1)), "apart": False}
    run = work.timed()
    work.load(run)
    with profiler_range(work.device):
        work.ranged(nullcontext())
        wait_for(work.device)
        lead, runs = work.window()
        with nvtx_range(LEAD):
            work.repeat(run, lead)
        with nvtx_range(TIMED):
            work.repeat(run, runs)
    return {"run_info": asdict(work.run_info(runs)), "apart": True}
