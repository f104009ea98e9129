"""What comes of one case in this process? Build, gate, warm up, time, and the record of it."""

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from harness.case import Case
from harness.cuda_clock import CudaEventClock
from harness.environment import around, snapshot
from harness.memory import CudaPeak, PeakMemory, ResidentPeak
from harness.nvml import Gpu, open_gpu
from harness.ranges import nvtx_range, profiler_range, range_name
from harness.reason import of_exception, sentence
from harness.record import Record
from harness.system import NeedsFreshProcess, Skip, System, Workload
from harness.timer import (
    Clock,
    CpuClock,
    Policy,
    Timing,
    least_warmup_s,
    measure,
    never_throttled,
    take_engine_samples,
)

VERIFY = "verify"
PROFILE = "profile"

PROFILE_WARM_RUNS = 3
PROFILED_RUNS = 5
_OUT_OF_MEMORY = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
# The driver refreshes its energy counter some ten times a second: a shorter region would read the refresh.
ENERGY_NEEDS_S = 1.0


@dataclass
class CaseRun:
    """One case on its way to a record. mode: "" measures, VERIFY stops after the gate, PROFILE never times."""

    case: Case
    policy: Policy
    mode: str = ""
    status: str = "ok"
    reason: str = ""
    # Fields of the record, as far as they are known: what was found before a failure is not lost with it.
    found: dict[str, Any] = field(default_factory=dict)
    healthy: bool = True

    def record(self, system: System) -> Record:
        """Run the case; what it raises becomes the status and the reason of the record, but for NeedsFreshProcess."""
        started_at, start, before = datetime.now(UTC), time.monotonic(), snapshot()
        self._guarded(system)
        timing = self.found.pop("timing", Timing([], [], ""))
        return Record(
            self.case,
            self.status,
            self.reason,
            samples_ms=timing.samples_ms,
            throttled=timing.throttled,
            stop=timing.stop,
            settings=self.found.pop("settings", {}) | ({"mode": self.mode} if self.mode else {}),
            environment=self._environment(before, system),
            started_at=started_at.isoformat(timespec="seconds"),
            wall_s=time.monotonic() - start,
            **self.found,
        )

    def _environment(self, before: dict[str, Any], system: System) -> dict[str, Any]:
        environment = around(before, self.found.pop("after", None) or snapshot())
        return environment | {"software": environment["software"] | system.versions()}

    def _guarded(self, system: System) -> None:
        try:
            self._run(system)
        except Skip as skip:
            self._end("skipped", sentence(str(skip)) or "the system does not say why")
        except NeedsFreshProcess:
            raise
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            self.healthy = False
            self._end("oom" if is_out_of_memory(error) else "failed", of_exception(error))

    def _run(self, system: System) -> None:
        workload = system.build(self.case)
        try:
            self.found |= {"metrics": workload.metrics, "settings": workload.settings, "tokens": workload.tokens}
            if self._passes_gate(workload):
                self._work(workload)
            # Before `close`: clocks and throttle reasons are those of the work, not of a GPU at rest.
            self.found["after"] = snapshot(workload.device)
        finally:
            self._close(workload)

    def _passes_gate(self, workload: Workload) -> bool:
        if self.mode == PROFILE:
            return True
        if workload.gate is None:
            if self.mode == VERIFY:
                self._end("skipped", "the system has no reference to be verified against")
            return self.mode != VERIFY
        verdict = workload.gate()
        self.found["gate"] = verdict.to_dict()
        if not verdict.passed:
            self._end("gate", sentence(verdict.reason))
        return verdict.passed

    def _work(self, workload: Workload) -> None:
        if self.mode == PROFILE:
            profile(self.case, workload, self.policy)
        elif not self.mode:
            self._measure(workload)

    def _measure(self, workload: Workload) -> None:
        gpu = open_gpu() if workload.device == "cuda" else None
        clock = clock_for(self.case, workload)
        self.found["settings"] = workload.settings | sampling_settings(workload, clock, self.policy)
        peak: PeakMemory = CudaPeak() if workload.device == "cuda" else ResidentPeak()
        peak.start()
        energy = EnergyMeter(gpu)
        timing = time_workload(self.case, workload, clock, self.policy, gpu, energy)
        bytes_held = peak.peak_bytes()
        self.found["peak_memory_bytes"] = None if bytes_held is None else bytes_held - clock.own_bytes
        self.found["timing"] = timing
        tokens = len(timing.samples_ms) * clock.launches * workload.units * workload.tokens
        if self.case.l2 == "warm" and timing.stop != "engine":
            self.found["metrics"] = workload.metrics | energy.per_token(tokens)

    def _close(self, workload: Workload) -> None:
        try:
            workload.close()
        except Exception:  # the measurement stands; the process is not to be trusted with another
            traceback.print_exc()
            self.healthy = False

    def _end(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        self.found.pop("timing", None)  # only what is "ok" may be timed


class EnergyMeter:
    """Joules that the GPU drew inside of a `with` block."""

    def __init__(self, gpu: Gpu | None) -> None:
        self._gpu = gpu
        self._joules: float | None = None
        self._seconds = 0.0

    def __enter__(self) -> "EnergyMeter":
        self._started = time.monotonic()
        self._before = self._gpu.energy_j() if self._gpu else None
        return self

    def __exit__(self, *_: object) -> None:
        after = self._gpu.energy_j() if self._gpu else None
        self._seconds = time.monotonic() - self._started
        if self._before is not None and after is not None:
            self._joules = after - self._before

    def per_token(self, tokens: int) -> dict[str, float | None]:
        """The metric `energy_j_per_token`; nothing where it is not known well enough."""
        if self._joules is None or not tokens or self._seconds < ENERGY_NEEDS_S:
            return {}
        return {"energy_j_per_token": self._joules / tokens}


def clock_for(case: Case, workload: Workload) -> Clock:
    """The clock of the workload's device; Skip where a CPU is asked for graphs or a cold L2."""
    if workload.device == "cuda":
        return CudaEventClock("graph" if workload.replayed else case.timing, case.l2)
    if workload.engine_samples is None and (case.timing, case.l2) != ("eager", "warm"):
        raise Skip(f"timing {case.timing!r} with l2 {case.l2!r} needs a CUDA device; this system ran on the CPU")
    return CpuClock()


def sampling_settings(workload: Workload, clock: Clock, policy: Policy) -> dict[str, str]:
    """For how long, in seconds, and how often the record's case might be sampled, and its least warm-up.

    Without the warm-up where the system times itself: what it leaves out of its samples is its own affair.
    """
    allowed: dict[str, float] = {
        "budget_s": policy.budget_s,
        "min_samples": policy.min_samples,
        "max_samples": policy.max_samples,
    }
    if workload.engine_samples is None:
        allowed["warmup_s"] = least_warmup_s(clock, policy)
    return {name: str(value) for name, value in allowed.items()}


def time_workload(
    case: Case, workload: Workload, clock: Clock, policy: Policy, gpu: Gpu | None, energy: EnergyMeter
) -> Timing:
    """Samples in ms of one unit, from the clock or from the engine itself."""
    throttled = gpu.throttled if gpu else never_throttled
    if workload.engine_samples is not None:
        with nvtx_range(range_name(case.phase)), energy:
            return take_engine_samples(workload.engine_samples(policy), throttled)
    with nvtx_range(range_name(case.phase)):
        timing = measure(workload.run, clock, policy, throttled, energy)
    timing.samples_ms = [sample / workload.units for sample in timing.samples_ms]
    return timing


def profile(case: Case, workload: Workload, policy: Policy) -> None:
    """A few runs inside of the profiler range, each in an NVTX range named by the phase; launched eagerly.

    Eagerly because NVTX ranges show when a graph is captured, not when it is replayed.
    """
    if workload.engine_samples is not None:
        few = replace(policy, min_samples=1, max_samples=PROFILED_RUNS)
        with profiler_range(workload.device), nvtx_range(range_name(case.phase)):
            list(workload.engine_samples(few))
        return
    for _ in range(PROFILE_WARM_RUNS):
        workload.run()
    with profiler_range(workload.device):
        for _ in range(PROFILED_RUNS):
            with nvtx_range(range_name(case.phase)):
                workload.run()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or what caused it, says that memory ended on the host or on the device."""
    return any(_says_out_of_memory(each) for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _says_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # Libraries that call CUDA themselves raise a plain RuntimeError.
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
