"""Run one case under a profiler, in its worker: a call under its ranges, then the timed work undisturbed by them."""

import importlib
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

from harness.case import Case
from harness.cuda_clock import launches_for
from harness.nvml import open_gpu
from harness.peak_memory import is_out_of_memory
from harness.ranges import COUNTED_LAYER, LEAD, TIMED, nvtx_range, profiler_range, range_name, recorded, told
from harness.system import Workload
from harness.timer import Policy, never_throttled, take_engine_samples

WARM_RUNS = 3
RUNS = 5  # of what is timed, one after another, at the least, so that one that is held up does not count
RUNS_S = 0.25  # and for so long: over a few ms the clock of a GPU at its power cap is any of its clocks
LONGEST_S = 6.0  # but fewer where they would take longer than this
LAUNCHES = 20_000  # of kernels that Kineto records, those that lead in too: a trace of more takes longer than it shows
COUNTED_STEPS = 2  # of a call of generate, its last ones: what is done once a mini-batch is in the last
LOAD_S = 2.0  # of load before a profiler is turned on: a GPU at its power cap is as slow as in a measurement
LEAD_S = 0.5  # of load after that, as turning it on takes so long that the GPU rests
_LONG_S = 1.0  # a run this long needs no second one to be warm

Tool = Literal["kineto", "nsys", "ncu"]
Found = TypeVar("Found")


@dataclass(frozen=True)
class ProfilerChoice:
    """Which profiler a case runs under; keep: where Kineto leaves its trace; ceilings: MODULE:FUNCTION that measures.

    Nsight's programs are outside of the worker: they capture the region of the CUDA profiler interface.
    """

    tool: Tool = "kineto"
    keep: str = ""
    ceilings: str = ""


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


def profile(case: Case, workload: Workload, policy: Policy, asked: ProfilerChoice) -> dict[str, Any]:
    """Run the case for the profiler: fields of a `Profile` as JSON values, those that a report lacks; of Kineto, all.

    Raises ProfileError where Kineto found nothing.
    """
    work = _Work(case, workload, policy)
    work.warm()
    if asked.tool != "ncu":
        work.alone()
    if asked.tool == "kineto":
        found = _by_kineto(work, Path(asked.keep) if asked.keep else None)
    else:
        found = _captured(work) if asked.tool == "nsys" else {"units": _counted(work)}
    return found | {"notes": work.notes, "work": {part: asdict(each) for part, each in workload.work.items()}}


class _Work:
    """What of a case runs under a profiler."""

    def __init__(self, case: Case, workload: Workload, policy: Policy) -> None:
        self.case, self.workload = case, workload
        self.name, self.device = range_name(case.phase), workload.device
        self.is_engine = workload.engine_samples is not None
        # Steps of an engine's batch: what leads in is the batch before them, and one region sees them.
        self.is_part = workload.engine_batch is not None and case.phase == "generate"
        self.units = workload.units
        self.notes: list[str] = []
        self.passes = 0  # of a call through the layer that is counted
        gpu = open_gpu() if workload.device == "cuda" else None
        self.throttled = gpu.throttled if gpu else never_throttled
        self.together = 1  # runs without a pause between them: about a sample of a measurement
        self.lead = 0  # runs just before those that are looked at
        self.runs = RUNS
        self.host_us: list[float] = []  # of an engine, which times itself: each run's time
        self.alone_us = 0.0  # and that of a run while nothing is profiled
        self._policy = replace(policy, min_samples=1, max_samples=1, budget_s=0.0)
        if case.l2 == "cold":
            self.notes.append("profiled with the L2 cache as the work leaves it, not cold")
        if self.is_engine and case.phase == "generate" and not self.is_part:
            self.notes.append("profiled from the prompts to the last token: the engine does not tell its steps apart")

    def warm(self) -> None:
        """Run until what compiles has compiled; learn how many units a run of an engine is."""
        if self.workload.engine_batch is not None:
            self.units = self.workload.engine_batch(nullcontext())
            return
        if self.workload.engine_samples is not None:
            samples = self.workload.engine_samples(self._policy)
            self.units = len(take_engine_samples(samples, self._policy).samples_ms)
            return
        for _ in range(WARM_RUNS):
            start = time.monotonic()
            entered: list[str] = []
            # With the ranges on, so that what is compiled anew for them is compiled here.
            with recorded(), told(entered.append):
                self.ranged(nullcontext())
            self.passes = entered.count(COUNTED_LAYER)
            _wait(self.device)
            if time.monotonic() - start > _LONG_S:
                break

    def alone(self) -> None:
        """Learn how long an engine's host takes for a run while nothing is profiled: a profiler holds it up."""
        start = time.monotonic()
        while self.is_engine and (not self.host_us or time.monotonic() - start < LOAD_S):
            self._once(self._on_the_hosts_clock())
        if self.host_us:
            self.alone_us = median(self.host_us[-RUNS:])  # those before them have warmed it up

    def load(self, run: Callable[[], object]) -> None:
        """Run what is timed until the GPU's power controller has settled; learn how many runs to lead in and to see.

        It rests where a measurement does: at its power cap a GPU runs faster after each rest.
        """
        start, runs, each_s = time.monotonic(), 0, 0.0
        while self.device == "cuda" and runs * each_s < LOAD_S:
            self.repeat(run, self.together)
            runs += self.together
            each_s = (time.monotonic() - start) / runs
            self.together = 1 if self.is_engine else launches_for(each_s * 1e3)
        if runs:
            self.lead = math.ceil(LEAD_S / each_s)
            self.runs = max(math.ceil(RUNS_S / each_s), min(RUNS, int(LONGEST_S / each_s)))

    def window(self, most: int = sys.maxsize) -> tuple[int, int]:
        """How many runs to lead in and to see, of at most `most` in all: whole samples, where they are that many."""
        runs = self._whole_samples(min(self.runs, max(1, most // 2)))
        return self._whole_samples(min(self.lead, most - runs)), runs

    def _whole_samples(self, runs: int) -> int:
        return runs - runs % self.together or runs

    def repeat(self, run: Callable[[], object], runs: int) -> None:
        """So many runs, and after each sample of them what a measurement does: wait, and ask about throttling."""
        for number in range(1, runs + 1):
            run()
            if number % self.together == 0:
                _wait(self.device)
                self.throttled()

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

    def timed(self) -> Callable[[], object]:
        """What is timed: the call, the replay of a graph of it, or an engine's batch."""
        if self.is_engine:
            return lambda: self._once(self._on_the_hosts_clock())
        if self.case.timing != "graph" or self.device != "cuda":
            return self.workload.run
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.workload.run()
        return graph.replay


def _by_kineto(work: _Work, keep: Path | None) -> dict[str, Any]:
    # Here, as a worker that profiles nothing needs no more than what it measures with.
    from harness.profilers import kineto
    from harness.profilers.trace import found_of, last_runs, typical_runs

    if work.device == "cpu":
        return _operators_by_kineto(work, keep)
    found = work.ranged(kineto.recording(work.device, with_ranges=True))
    ranged = kineto.launched(found.events, work.device)
    runs, timed = 1, ranged
    if work.is_part:
        # Ranges and the host's calls cost an engine that waits for its host up to half of its time.
        found = work.ranged(kineto.recording(work.device, with_ranges=False, keep=keep))
        timed = kineto.launched(found.events, work.device)
    else:
        run, most = work.timed(), max(1, LAUNCHES // max(1, len(ranged)))
        with kineto.recording(work.device, with_ranges=False, keep=keep, before=lambda: work.load(run)) as found:
            lead, runs = work.window(most)
            work.repeat(run, lead)
            work.repeat(run, runs)
        launched = kineto.launched(found.events, work.device)
        timed, runs = last_runs(launched, runs, lead + runs)
    typical = typical_runs(timed, runs, work.together, work.host_us[-runs:], work.alone_us)
    work.notes += [typical.note] if typical.note else []
    return _values(found_of(typical, ranged, work.units))


def _operators_by_kineto(work: _Work, keep: Path | None) -> dict[str, Any]:
    """Of several calls under their ranges the one of median length: what holds one up is not what bounds the case."""
    from harness.profilers import kineto
    from harness.profilers.trace import found_in

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


def _counted(work: _Work) -> int:
    """A call in whose last passes through the counted layer Nsight counts; how many units the call has."""
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
    return work.units


def _captured(work: _Work) -> dict[str, Any]:
    """Run a call under its ranges, then what is timed, in Nsight's region.

    The answer: units of a run; runs, 0 where the call under its ranges is what is timed; how many of them ran together;
    host_us, of each run where the host times it; alone_us, of a run while nothing is profiled.
    """
    if work.is_part:
        work.ranged(profiler_range(work.device))
        return {"units": work.units, "runs": 0, "together": 1, "host_us": work.host_us[-1:], "alone_us": work.alone_us}
    run = work.timed()
    work.load(run)
    with profiler_range(work.device):
        work.ranged(nullcontext())
        _wait(work.device)
        lead, runs = work.window()
        with nvtx_range(LEAD):
            work.repeat(run, lead)
        with nvtx_range(TIMED):
            work.repeat(run, runs)
    host = {"host_us": work.host_us[-runs:], "alone_us": work.alone_us}
    return {"units": work.units, "runs": runs, "together": work.together} | host


def _values(found: Mapping[str, Any]) -> dict[str, Any]:
    """Dataclasses as JSON values."""
    parts = {name: [asdict(each) for each in found[name]] for name in ("kernels", "ranges")}
    return {**found, **parts, "timeline": asdict(found["timeline"])}


def _wait(device: str) -> None:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
