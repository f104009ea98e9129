"""Run one case under a profiler, in its worker: a call under its ranges, then the timed work undisturbed by them."""

import importlib
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

from harness.measure.cuda_clock import SETTLES_S, WAKES_S, CudaEventClock, wait_for
from harness.measure.peak_memory import is_out_of_memory
from harness.measure.ranges import COUNTED_LAYER, LEAD, TIMED, nvtx_range, profiler_range, range_name, recorded, told
from harness.measure.system import Workload
from harness.measure.timer import (
    CpuClock,
    Timing,
    never_throttled,
    take_engine_samples,
    take_samples,
    warm_up,
    warm_up_engine,
)
from harness.profiling.tools import kineto
from harness.profiling.tools.trace import Runs, found_in, found_of, last_runs
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.profile import ProfileError

WARM_RUNS = 3
RUNS = 5  # of what is timed, one after another, at the least, so that one that is held up does not count
RUNS_S = 0.25  # and for so long
CAPPED_S = 1.0  # or so long at the power cap, where the clocks swing: an H200's from 1.5 to 1.98 GHz in half a second
LONGEST_S = 6.0  # but fewer where they would take longer than this
ALONE = Policy(budget_s=1.0)  # how runs are timed while nothing is profiled
LAUNCHES = 20_000  # of kernels that Kineto records, those that lead in too: a trace of more takes longer than it shows
COUNTED_STEPS = 2  # of a call of generate, its last ones: what is done once a mini-batch is in the last
_LONG_S = 1.0  # a run this long needs no second one to be warm

Tool = Literal["none", "kineto", "nsys", "ncu"]
Found = TypeVar("Found")


@dataclass(frozen=True)
class ProfilerChoice:
    """Which profiler a case runs under; keep: where Kineto leaves its trace; ceilings: MODULE:FUNCTION that measures.

    Nsight's programs are outside of the worker: they capture the region of the CUDA profiler interface. "none": the
    case is but timed. alone_us: what that found, 0 where it is to be found beside the profile.
    """

    tool: Tool = "kineto"
    keep: str = ""
    ceilings: str = ""
    alone_us: float = 0.0

    def measured_ceilings(self) -> dict[str, float | None]:
        """Peak rates of this GPU by `ceilings`."""
        return ceilings_by(self.ceilings)

    def profile(
        self, case: Case, workload: Workload, throttled: Callable[[], bool] = never_throttled
    ) -> dict[str, Any]:
        """Fields of the case's profile under this profiler."""
        return profile(case, workload, self, throttled)


def ceilings_by(entry: str) -> dict[str, float | None]:
    """What MODULE:FUNCTION measures of this GPU; {} without an entry, or where memory does not suffice for it."""
    if not entry:
        return {}
    module, _, function = entry.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)()
    except Exception as error:
        if is_out_of_memory(error):
            return {}
        raise
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()  # an engine takes what is free when it starts
    return found


def profile(
    case: Case, workload: Workload, asked: ProfilerChoice, throttled: Callable[[], bool] = never_throttled
) -> dict[str, Any]:
    """Run the case for the profiler: fields of a `Profile` as JSON values, those that a report lacks; of Kineto, all.

    Of "none" it is "alone_us" alone: how long a call takes while nothing is profiled, of an engine a unit; 0 on a CPU.
    Raises ProfileError where Kineto found nothing, and for an engine without `Workload.engine_batch`.
    """
    work = _Work(case, workload, throttled)
    work.warm()
    if asked.tool != "ncu":
        work.alone(asked.alone_us)
    if asked.tool == "none":
        return {"alone_us": work.call_us}
    found: dict[str, Any] = {}
    if asked.tool == "kineto":
        found = _by_kineto(work, Path(asked.keep) if asked.keep else None)
    elif asked.tool == "nsys":
        found = _captured(work)
    else:
        _counted(work)
    parts = {part: asdict(each) for part, each in workload.work.items()}
    return found | {"notes": [*work.notes, *found.get("notes", ())], "work": parts}


class _Work:
    """What of a case runs under a profiler."""

    def __init__(self, case: Case, workload: Workload, throttled: Callable[[], bool] = never_throttled) -> None:
        self.case, self.workload, self.throttled = case, workload, throttled
        self.name, self.device = range_name(case.phase), workload.device
        self.is_engine = workload.engine_samples is not None
        if self.is_engine and workload.engine_batch is None:
            raise ProfileError("the system times itself and has no batch for a profiler (Workload.engine_batch)")
        # Steps of an engine's batch: what leads in is the batch before them, and one region sees them.
        self.is_part = self.is_engine and case.phase == "generate"
        self.units = workload.units
        self.notes: list[str] = []
        self.passes = 0  # of a call through the layer that is counted
        self.call_s = 0.0  # of one call, its ranges and the host's wait included
        self.calls = 1  # of a run: as many as a sample of a measurement launches together
        self.lead = 0  # runs just before those that are looked at
        self.runs = RUNS
        self.host_us: list[float] = []  # of an engine, which times itself: each run's time
        self.clock: CudaEventClock | None = None  # of what runs on a GPU and is no engine
        self.call_us = 0.0  # of a call, of an engine of a unit, while nothing is profiled; 0 where that is not known
        self.alone_us = 0.0  # of a run, likewise
        if case.l2 == "cold":
            self.notes.append("profiled with the L2 cache as the work leaves it, not cold")

    def warm(self) -> None:
        """Run until what compiles has compiled; learn how many units a run of an engine is."""
        if self.is_engine:
            self._once(nullcontext())
            return
        for _ in range(WARM_RUNS):
            start = time.monotonic()
            entered: list[str] = []
            # With the ranges on, so that what is compiled anew for them is compiled here.
            with recorded(), told(entered.append):
                self.ranged(nullcontext())
            self.passes = entered.count(COUNTED_LAYER)
            wait_for(self.device)
            self.call_s = time.monotonic() - start
            if self.call_s > _LONG_S:
                break

    def alone(self, call_us: float = 0.0) -> None:
        """Learn how long a run takes while nothing is profiled, as a measurement times it: a profiler may slow it.

        call_us: of a call, of an engine of a unit, where an earlier timing told it.
        """
        if not self.is_engine and self.device != "cuda":
            return
        if not self.is_engine:
            self.clock = CudaEventClock(self.case.timing)
            self.clock.prepare(self.workload.run, self.call_s)
            self.calls = self.clock.launches
        self.call_us = call_us or median(self._samples_alone().samples_ms) * 1e3
        self.alone_us = self.call_us * (self.units if self.is_engine else self.calls)

    def _samples_alone(self) -> Timing:
        if self.workload.engine_samples is not None:
            batches = iter(self.workload.engine_samples(ALONE))
            warm_up_engine(batches, ALONE, CudaEventClock() if self.device == "cuda" else CpuClock(), self.throttled)
            return take_engine_samples(batches, ALONE, self.throttled)
        assert self.clock is not None
        warm_up(self.clock, ALONE, self.throttled)
        return take_samples(self.clock, ALONE, self.throttled)

    def timed(self) -> Callable[[], object]:
        """A run: a sample's calls as a measurement launches them, or an engine's batch."""
        if self.is_engine:
            return lambda: self._once(self._on_the_hosts_clock())
        return self.clock.launch if self.clock else self.workload.run

    def load(self, run: Callable[[], object]) -> None:
        """Run what is timed until the GPU's power controller has settled; learn how many runs to lead in and to see.

        It rests where a measurement does: at its power cap a GPU runs faster after each rest. Turning a profiler on is
        such a rest, so what leads in settles it again.
        """
        start, runs, took_s, capped = time.monotonic(), 0, 0.0, False
        while self.device == "cuda" and took_s < SETTLES_S:
            capped = self.repeat(run, 1) or capped
            runs, took_s = runs + 1, time.monotonic() - start
        if runs:
            each_s = took_s / runs
            self.lead = math.ceil((SETTLES_S if capped else WAKES_S) / each_s)
            least = math.ceil((CAPPED_S if capped else RUNS_S) / each_s)
            self.runs = max(least, min(RUNS, int(LONGEST_S / each_s)))

    def window(self, most: int = sys.maxsize) -> tuple[int, int]:
        """How many runs to lead in and to see, of at most `most` in all, of which a quarter at the least leads in."""
        runs = min(self.runs, max(1, most - max(1, most // 4)))
        return min(self.lead, most - runs), runs

    def repeat(self, run: Callable[[], object], runs: int) -> bool:
        """So many runs, and after each what a measurement does after a sample: wait, and ask about throttling."""
        throttled = False
        for _ in range(runs):
            run()
            wait_for(self.device)
            throttled = self.throttled() or throttled
        return throttled

    def seen(self, runs: int) -> Runs:
        """What a profiler saw in the last runs."""
        return Runs(runs, self.units, self.calls, self.host_us[-runs:], self.alone_us, self.case.timing == "graph")

    def ranged(self, region: AbstractContextManager[Found]) -> Found:
        """One call in the range of its phase, inside of `region`; of an engine's batch what it takes samples of."""
        entered: list[Found] = []

        @contextmanager
        def inside() -> Iterator[None]:
            with region as found, nvtx_range(self.name):
                entered.append(found)
                with self._on_the_hosts_clock():
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
    def _on_the_hosts_clock(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        if self.is_engine:
            self.host_us.append((time.monotonic() - start) * 1e6)


def _by_kineto(work: _Work, keep: Path | None) -> dict[str, Any]:
    if work.device == "cpu":
        return _operators_by_kineto(work, keep)
    found = work.ranged(kineto.recording(work.device, with_ranges=True))
    ranged = kineto.launched(found.events, work.device)
    if work.is_part:
        # Ranges and the host's calls cost an engine that waits for its host up to half of its time.
        found = work.ranged(kineto.recording(work.device, with_ranges=False, keep=keep))
        return _values(found_of(kineto.launched(found.events, work.device), ranged, work.seen(1)))
    run = work.timed()
    most = max(1, LAUNCHES // max(1, len(ranged) * work.calls))
    with kineto.recording(work.device, with_ranges=False, keep=keep, before=lambda: work.load(run)) as found:
        lead, runs = work.window(most)
        work.repeat(run, lead + runs)
    launched, runs = last_runs(kineto.launched(found.events, work.device), runs, lead + runs)
    return _values(found_of(launched, ranged, work.seen(runs)))


def _operators_by_kineto(work: _Work, keep: Path | None) -> dict[str, Any]:
    """Of several calls under their ranges the one of median length: what holds one up is not what bounds the case."""
    calls: list[tuple[dict[str, Any], Path]] = []
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while len(calls) < RUNS and (not calls or time.monotonic() - start < LONGEST_S):
            trace = Path(folder) / f"{len(calls)}.json.gz"
            found = work.ranged(kineto.recording(work.device, with_ranges=True, keep=trace if keep else None))
            operators = kineto.launched(found.events, work.device)
            calls.append((found_in(operators, operators), trace))
        values, trace = sorted(calls, key=lambda call: call[0]["region_us"])[(len(calls) - 1) // 2]
        if keep:
            with suppress(OSError):  # the worker may run where that folder is not
                shutil.copyfile(trace, keep)
    return _values(values) | {"units": work.units}


def _counted(work: _Work) -> None:
    """A call in whose last passes through the counted layer Nsight counts."""
    first, passes = max(0, work.passes - COUNTED_STEPS), 0
    with ExitStack() as region:

        def entered(name: str) -> None:
            nonlocal passes
            if name != COUNTED_LAYER:
                return
            if passes == first:
                region.enter_context(profiler_range(work.device))
            passes += 1

        with told(entered):
            work.ranged(nullcontext() if work.passes else profiler_range(work.device))


def _captured(work: _Work) -> dict[str, Any]:
    """Run a call under its ranges, then what is timed, in Nsight's region.

    The answer: what it saw, and whether that was apart from the call under its ranges.
    """
    if work.is_part:
        work.ranged(profiler_range(work.device))
        return {"seen": asdict(work.seen(1)), "apart": False}
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
    return {"seen": asdict(work.seen(runs)), "apart": True}


def _values(found: Mapping[str, Any]) -> dict[str, Any]:
    """Dataclasses as JSON values."""
    parts = {name: [asdict(each) for each in found[name]] for name in ("kernels", "ranges")}
    return {**found, **parts, "timeline": asdict(found["timeline"])}
