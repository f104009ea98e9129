"""Run one case in this process: build, gate, warm up, time, check what was timed, and make the record."""

import secrets
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from random import Random
from typing import Any, Protocol, get_args

from harness.measure.cuda_clock import CudaEventClock
from harness.measure.environment import around, snapshot, versions_of
from harness.measure.gate import Verdict
from harness.measure.inspection import Inspector, claim_checks, floor_check, judged
from harness.measure.nvml import LASTS_S, Cooler, EnergyMeter, Gpu, open_gpu
from harness.measure.peak_memory import CudaPeak, PeakMemory, ResidentPeak, is_out_of_memory
from harness.measure.process_state import ProcessState
from harness.measure.ranges import nvtx_range, range_name
from harness.measure.system import NeedsFreshProcess, Skip, SystemAdapter, Workload
from harness.measure.timer import (
    LEAST_S,
    Clock,
    CpuClock,
    Timing,
    least_warmup_s,
    never_throttled,
    take_engine_samples,
    take_samples,
    warm_up,
    warm_up_engine,
)
from harness.schema.case import Case, Mode
from harness.schema.policy import Policy
from harness.schema.reason import of_exception, raised_at, sentence
from harness.schema.record import Record

NO_REFERENCE = "the system has no reference to be verified against"


@dataclass
class _Found:
    """Fields of the record, as far as they are known: what was found before a failure is not lost with it."""

    timing: Timing = field(default_factory=lambda: Timing([], [], ""))
    calls: int = 1
    tokens: int = 0
    peak_memory_bytes: int | None = None
    verdict: Verdict | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    after: dict[str, Any] | None = None  # the machine, when the work had just ended


class CaseProfiler(Protocol):
    """Profiles a case in this process."""

    def measured_ceilings(self) -> dict[str, float | None]:
        """Peak rates of this GPU, measured before the case takes memory; {} without."""

    def profile(self, case: Case, workload: Workload, throttled: Callable[[], bool]) -> dict[str, Any]:
        """Fields of the case's profile as JSON values."""


@dataclass
class CaseRun:
    """One case on its way to a record. mode: "verify" checks without timing, "profile" never times."""

    case: Case
    policy: Policy
    mode: Mode = "measure"
    profiler: CaseProfiler | None = None  # for mode "profile"
    cooler: Cooler = field(default_factory=Cooler)  # which knows how hot the cases before left the GPU
    status: str = "ok"
    reason: str = ""
    found: _Found = field(default_factory=_Found)
    stages_s: dict[str, float] = field(default_factory=dict)
    healthy: bool = True
    ceilings: dict[str, float | None] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)  # for mode "profile"
    _inner_s: float = 0.0  # of stages inside of the one that goes on
    _claimed: dict[str, float | None] = field(default_factory=dict)  # metrics of the adapter, before anything ran
    owns_process: bool = False  # an engine that lives on from case to case sets its process up as it needs it

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode {self.mode!r}: must be one of {', '.join(get_args(Mode))}")
        if (self.profiler is not None) != (self.mode == "profile"):
            raise ValueError(f"mode {self.mode!r}: a profiler is for mode 'profile', and that needs one")

    def record(self, system: SystemAdapter) -> Record:
        """Run the case; what it raises becomes the status and the reason of the record, but for NeedsFreshProcess."""
        started_at, start, before = datetime.now(UTC), time.monotonic(), snapshot()
        self.cooler.saw(before["gpu"])
        state = ProcessState()
        self._guarded(system)
        self.cooler.saw((self.found.after or {}).get("gpu"))
        if not self.owns_process:
            self.healthy = state.restore() and self.healthy
        found = self.found
        return Record(
            self.case,
            self.status,
            self.reason,
            samples_ms=found.timing.samples_ms,
            throttled=found.timing.throttled,
            calls=found.calls,
            tokens=found.tokens,
            stop=found.timing.stop,
            peak_memory_bytes=found.peak_memory_bytes,
            gate=found.verdict.to_dict() if found.verdict else None,
            metrics=found.metrics,
            settings=found.settings,
            environment=self._environment(before, system),
            started_at=started_at.isoformat(timespec="seconds"),
            wall_s=time.monotonic() - start,
            stages_s=self.stages_s,
        )

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        """What happens inside counts as this stage, also when it fails, but for what is a stage of its own."""
        start, outer_s = time.monotonic(), self._inner_s
        self._inner_s = 0.0
        try:
            yield
        finally:
            took = time.monotonic() - start
            self.stages_s[name] = self.stages_s.get(name, 0.0) + took - self._inner_s
            self._inner_s = outer_s + took

    def _reference(self) -> AbstractContextManager[None]:
        """The stage in which the reference answers for what was timed."""
        return self._stage("reference")

    def _environment(self, before: dict[str, Any], system: SystemAdapter) -> dict[str, Any]:
        environment = around(before, self.found.after or snapshot())
        return environment | {"software": environment["software"] | versions_of(system.packages)}

    def _guarded(self, system: SystemAdapter) -> None:
        try:
            # Before the case holds memory that they need.
            self.ceilings = self.profiler.measured_ceilings() if self.profiler else {}
            with self._stage("build"):
                workload = system.build(self.case)
                if not isinstance(workload, Workload):
                    raise TypeError(f"{type(system).__name__}.build returned {workload!r:.60}, which is no Workload")
            self.owns_process = workload.engine_samples is not None
        except Skip as skip:
            return self._end("skipped", sentence(str(skip)) or "the system does not say why")
        except NeedsFreshProcess:
            raise
        except (Exception, SystemExit) as error:
            return self._fail(error)
        try:
            self._run(workload)
        except _CannotTime as error:
            self._end("skipped", str(error))
        except (Exception, SystemExit) as error:
            self._fail(error)
        return None

    def _fail(self, error: BaseException) -> None:
        traceback.print_exception(error)
        self.healthy = False
        if is_out_of_memory(error):
            return self._end("oom", of_exception(error))
        return self._end("failed", of_exception(error) + raised_at(error))

    def _run(self, workload: Workload) -> None:
        try:
            found = self.found
            found.metrics, found.settings = dict(workload.metrics), dict(workload.settings)
            self._claimed = dict(workload.metrics)
            found.tokens = workload.tokens
            if self._passes_gate(workload):
                self._work(workload)
            found.after = found.after or snapshot(workload.device)  # before `close`
        finally:
            self._close(workload)

    def _passes_gate(self, workload: Workload) -> bool:
        if self.mode == "profile" or workload.gate is None:
            return True
        with self._stage("gate"):
            verdict = workload.gate()
        self.found.metrics |= workload.metrics  # a gate may find some
        return self._accepts(verdict)

    def _accepts(self, verdict: Verdict) -> bool:
        """Whether the verdict is passed; it joins what was checked before."""
        whole = (self.found.verdict or Verdict([])) + verdict
        if whole.checks:
            self.found.verdict = whole
        if whole.checks and not whole.passed:
            self._end("incorrect", sentence(whole.reason))
        return self.status == "ok"

    def _work(self, workload: Workload) -> None:
        if self.mode != "verify":
            self._let_cool(workload)
        peak: PeakMemory = CudaPeak() if workload.device == "cuda" else ResidentPeak()
        peak.start()
        with self._stage("warm_up"):
            workload.capture()
        if self.profiler:
            gpu = open_gpu() if workload.device == "cuda" else None
            found = self.profiler.profile(self.case, workload, gpu.throttled if gpu else never_throttled)
            self.profile = found | {"ceilings": self.ceilings}
            self.found.after = _machine_after(workload, gpu)
        elif self.mode == "verify":
            self._verify(workload)
        else:
            self._measure(workload, peak)

    def _let_cool(self, workload: Workload) -> None:
        """Let a GPU rest that heat slowed down in the case before."""
        gpu = open_gpu() if workload.device == "cuda" and self.cooler.goal_c is not None else None
        if gpu:
            with self._stage("cool_down"):
                self.cooler.rest(gpu)

    def _verify(self, workload: Workload) -> None:
        """The case checked at its own batch and length, and no time kept.

        Its calls are eager, also those of a case that is timed in a graph: what they launch is the same.
        """
        if workload.gate is None and workload.witness is None:
            return self._end("skipped", NO_REFERENCE)
        if not self._accepts(Verdict(list(claim_checks(self.case, workload)))) or workload.witness is None:
            return None
        if workload.engine_samples is not None:
            once = replace(self.policy, min_samples=1, budget_s=0.0)
            take_engine_samples(workload.engine_samples(once), once)
            self._accepts(_engine_verdict(workload))
        else:
            clock = CpuClock() if workload.device == "cpu" else CudaEventClock()
            inspector = Inspector(self.case, workload)
            clock.prepare(inspector.run)
            self._accepts(inspector.checked_call(clock))
        return None

    def _measure(self, workload: Workload, peak: PeakMemory) -> None:
        gpu = open_gpu() if workload.device == "cuda" else None
        clock, inspector = clock_for(self.case, workload), Inspector(self.case, workload, self._reference)
        policy = self.policy
        if self._metered(gpu) and workload.engine_samples is None:  # the energy counter needs that long
            policy = replace(policy, budget_s=max(policy.budget_s, LASTS_S))
        self.found.settings = workload.settings | sampling_settings(clock, policy)
        energy = EnergyMeter(self._metered(gpu))
        timing = self._timed(workload, clock, gpu, policy, energy, inspector)
        # At once: clocks and throttle reasons are those of the work, not of a GPU at rest or at its check.
        self.found.after = _machine_after(workload, gpu)
        bytes_held = peak.peak_bytes()
        self.found.peak_memory_bytes = None if bytes_held is None else bytes_held - clock.own_bytes
        self.found.timing = timing
        calls = clock.launches * workload.units
        self.found.calls = calls
        if workload.measured is not None:
            self.found.metrics |= workload.measured(len(timing.samples_ms) * clock.launches)
        sampled_s = sum(timing.samples_ms) * calls / 1e3
        self.found.metrics |= energy.per_token(len(timing.samples_ms) * calls * workload.tokens, sampled_s)
        with self._stage("check"):
            self._accepts(self._checked(workload, clock, inspector, timing))

    def _metered(self, gpu: Gpu | None) -> Gpu | None:
        """The GPU whose energy is told: of a cold case, flushing the cache draws some that is not the work's."""
        return gpu if self.case.l2 == "warm" else None

    def _timed(
        self,
        workload: Workload,
        clock: Clock,
        gpu: Gpu | None,
        policy: Policy,
        energy: EnergyMeter,
        inspector: Inspector,
    ) -> Timing:
        """Samples in ms of one unit, from the clock or from the engine itself."""
        throttled = gpu.throttled if gpu else never_throttled
        with nvtx_range(range_name(self.case.phase)):
            if workload.engine_samples is not None:
                batches = iter(workload.engine_samples(policy))
                with self._stage("warm_up"):
                    warm_up_engine(batches, policy, clock, throttled)
                _forget_what_slowed(gpu)
                with self._stage("sample"), energy:
                    return take_engine_samples(batches, policy, throttled)
            with self._stage("warm_up"):
                clock.prepare(inspector.run)
                inspector.before_sample()  # the first time takes tens of milliseconds, in which a GPU rests
                warm_up(clock, policy, throttled)
            _forget_what_slowed(gpu)
            with self._stage("sample"), energy:
                least_s = LASTS_S if self._metered(gpu) else LEAST_S
                timing = take_samples(clock, policy, throttled, inspector.before_sample, least_s)
        timing.samples_ms = [sample / workload.units for sample in timing.samples_ms]
        return timing

    def _checked(self, workload: Workload, clock: Clock, inspector: Inspector, timing: Timing) -> Verdict:
        """What the timed callable left, against the reference."""
        floor = floor_check(workload, timing.samples_ms)
        if workload.engine_samples is None:
            verdict = inspector.checked_call(clock)
        elif workload.witness:
            with self._reference():
                verdict = judged(lambda: _engine_verdict(workload))
        else:
            verdict = Verdict([], "what the engine answered was compared with nothing")
        return verdict + Verdict([*claim_checks(self.case, workload), *floor])

    def _close(self, workload: Workload) -> None:
        try:
            workload.close()
        except Exception:  # the measurement stands; the process is not to be trusted with another
            traceback.print_exc()
            self.healthy = False

    def _end(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        self.found.timing = Timing([], [], "")  # only what is "ok" may be timed, and what followed from samples
        self.found.metrics = self._claimed


def _forget_what_slowed(gpu: Gpu | None) -> None:
    """So that the reasons that a record names are those of its samples."""
    if gpu:
        gpu.forget()


def _machine_after(workload: Workload, gpu: Gpu | None) -> dict[str, Any]:
    """The machine, when the work had just ended; of its GPU, what slowed it down at any time, and how hot that was."""
    after = snapshot(workload.device)
    if gpu and after["gpu"]:
        after["gpu"]["temperature_c"] = gpu.hottest_c or after["gpu"]["temperature_c"]
        after["gpu"]["throttle_reasons"] = sorted(gpu.slowed_by.union(after["gpu"]["throttle_reasons"]))
    return after


def _engine_verdict(workload: Workload) -> Verdict:
    """On the last batch that an engine ran by itself."""
    assert workload.witness is not None
    return workload.witness(Random(secrets.randbits(128)))(None, 1)


class _CannotTime(Exception):
    """The case asks for a timing that its device does not have."""


def clock_for(case: Case, workload: Workload) -> Clock:
    """The clock of the workload's device."""
    if workload.device == "cuda":
        return CudaEventClock(case.timing, case.l2)
    if workload.engine_samples is None and (case.timing, case.l2) != ("eager", "warm"):
        raise _CannotTime(f"timing {case.timing!r} with l2 {case.l2!r} needs a CUDA device; this system ran on the CPU")
    return CpuClock()


def sampling_settings(clock: Clock, policy: Policy) -> dict[str, str]:
    """For how long, in seconds, and how often the case might be sampled, and its least warm-up if throttled."""
    allowed: dict[str, float] = {
        "budget_s": policy.budget_s,
        "min_samples": policy.min_samples,
        "warmup_s": least_warmup_s(clock, policy, limited=True),
    }
    return {name: str(value) for name, value in allowed.items()}
