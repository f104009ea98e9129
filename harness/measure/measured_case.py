"""Run one case in this process: build, check, warm up, time, check the timed call."""

import gc
import secrets
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from random import Random
from statistics import median
from typing import Any

from pydantic import ValidationError

from harness.measure.correctness import Checks
from harness.measure.cuda_clock import CudaEventClock
from harness.measure.environment import around, snapshot, versions_of
from harness.measure.inspection import CallChecker, claim_checks, lower_bound_check, unless_out_of_memory
from harness.measure.nvml import MIN_BLOCK_S, EnergyMeter, Gpu, open_gpu
from harness.measure.process_state import is_out_of_memory, peak_bytes, process_settings, reset_peak
from harness.measure.ranges import nvtx_range
from harness.measure.system import NeedsFreshProcess, Skip, SystemAdapter, Workload
from harness.measure.timer import (
    LEAST_S,
    Clock,
    Timing,
    never_throttled,
    take_engine_samples,
    take_samples,
    warm_up,
    warm_up_engine,
)
from harness.schema.case import Case, Mode
from harness.schema.policy import Policy
from harness.schema.reason import invalid, of_exception, raised_at, rounded, sentence
from harness.schema.record import SAMPLE_DIGITS, Record, utc_now

NO_REFERENCE = "the system has no reference to verify against"


@dataclass
class CaseRun:
    """One run of a case in this process; `record` does the work.

    mode: "measure" times the case, "verify" only checks outputs, "profile" calls `profiler`.
    profiler: takes (case, workload, function that returns whether the GPU is throttled); returns fields of a `Profile`.
    healthy: after `record`, whether the process can run another case.
    profile: after `record`, the fields that `profiler` returned.
    """

    case: Case
    policy: Policy
    mode: Mode = "measure"
    profiler: Callable[[Case, Workload, Callable[[], bool]], dict[str, Any]] | None = None
    healthy: bool = field(default=True, init=False)
    profile: dict[str, Any] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # Fields of the record; after a failure, only earlier stages have set theirs.
        self._fields: dict[str, Any] = {"status": "ok", "metrics": {}, "stages_s": {}}
        self._checks = Checks([])
        self._build_metrics: dict[str, float | None] = {}  # the workload's metrics before the first check
        self._after: dict[str, Any] | None = None  # snapshot right after the last sample
        self._owns_process = False  # whether an engine may change global settings

    def record(self, system: SystemAdapter) -> Record:
        """Run the case and return its record; errors are recorded too, except NeedsFreshProcess."""
        started_at, start, before = utc_now(), time.monotonic(), snapshot()
        settings = process_settings()
        self._guarded(system)
        if not self._owns_process:
            now = process_settings()  # has torch's settings too if the case imported torch
            self.healthy = self.healthy and all(now[name] == value for name, value in settings.items())
        environment = around(before, self._after or snapshot())
        try:
            return Record(
                self.case,
                **self._fields,
                check=self._checks.to_dict() if self._checks.checks else None,
                environment=environment | {"software": environment["software"] | versions_of(system.packages)},
                started_at=started_at,
                wall_s=time.monotonic() - start,
            )
        except ValidationError as error:
            raise ValueError(f"the workload's results are invalid: {invalid(error)}") from None

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        start, stages_s = time.monotonic(), self._fields["stages_s"]
        try:
            yield
        finally:
            stages_s[name] = stages_s.get(name, 0.0) + time.monotonic() - start

    def _guarded(self, system: SystemAdapter) -> None:
        try:
            with self._stage("build"):
                gc.collect()  # frees the last workload, whose state may fill the GPU, even if it refers to itself
                workload = system.build(self.case)
            self._owns_process = workload.engine_samples is not None
            self._run(workload)
        except Skip as skip:
            self._end("skipped", sentence(str(skip)) or "the system gave no reason")
        except NeedsFreshProcess:
            raise
        except (Exception, SystemExit) as error:
            traceback.print_exception(error)
            self.healthy = False
            is_oom = is_out_of_memory(error)
            self._end("oom" if is_oom else "failed", of_exception(error) + ("" if is_oom else raised_at(error)))

    def _run(self, workload: Workload) -> None:
        self._build_metrics = dict(workload.metrics)
        self._fields |= {"metrics": dict(self._build_metrics), "settings": workload.settings, "tokens": workload.tokens}
        if self._passes_first_check(workload):
            self._work(workload)
        self._after = self._after or snapshot(workload.device)

    def _passes_first_check(self, workload: Workload) -> bool:
        if self.mode == "profile" or workload.check is None:
            return True
        with self._stage("check"):
            checked = workload.check()
        self._fields["metrics"] |= workload.metrics  # the check may add some
        return self._accepts(checked)

    def _accepts(self, checked: Checks) -> bool:
        self._checks += checked
        if self._checks.checks and not self._checks.passed:
            self._end("incorrect", sentence(self._checks.reason))
        return bool(self._fields["status"] == "ok")

    def _work(self, workload: Workload) -> None:
        gpu = open_gpu() if workload.device == "cuda" else None
        reset_peak(workload.device)
        with self._stage("warm_up"):
            workload.capture()
        if self.mode == "verify":
            self._verify(workload)
        elif self.profiler:
            self.profile = self.profiler(self.case, workload, gpu.throttled if gpu else never_throttled)
            self._after = _machine_after(workload, gpu)
        elif self._can_be_timed(workload):
            self._measure(workload, gpu)

    def _can_be_timed(self, workload: Workload) -> bool:
        timing, l2 = self.case.timing, self.case.l2
        if workload.device == "cuda" or workload.engine_samples or (timing, l2) == ("eager", "warm"):
            return True
        self._end("skipped", f"timing {timing!r} with l2 {l2!r} needs a CUDA device; this system runs on the CPU")
        return False

    def _verify(self, workload: Workload) -> None:
        if not self._checks.checks and workload.timed_check is None:
            return self._end("skipped", "; ".join(filter(None, (NO_REFERENCE, self._checks.unchecked))))
        if not self._accepts(Checks(list(claim_checks(self.case, workload)))) or workload.timed_check is None:
            return None
        if workload.engine_samples is not None:
            take_engine_samples(workload.engine_samples(), replace(self.policy, min_samples=1, budget_s=0.0))
            self._accepts(_check_engine(workload))
        else:
            clock = Clock() if workload.device == "cpu" else CudaEventClock()
            checker = CallChecker(self.case, workload)
            clock.prepare(checker.run)
            self._accepts(checker.checked_call(clock))
        return None

    def _measure(self, workload: Workload, gpu: Gpu | None) -> None:
        clock = CudaEventClock(self.case.timing, self.case.l2) if workload.device == "cuda" else Clock()
        checker = CallChecker(self.case, workload)
        timing, energy = self._timed(workload, gpu, clock, checker)
        self._after = _machine_after(workload, gpu)  # before the GPU is idle or checks the outputs
        calls = clock.launches * workload.units
        self._fields |= vars(timing) | {"calls": calls, "settings": workload.settings}
        self._fields["samples_ms"] = [rounded(ms, SAMPLE_DIGITS) for ms in timing.samples_ms]
        self._fields["peak_memory_bytes"] = peak_bytes(workload.device) - clock.own_bytes
        if workload.measured is not None:
            self._fields["metrics"] |= workload.measured(len(timing.samples_ms) * clock.launches)
        sampled_s = sum(timing.samples_ms) * calls / 1e3
        self._fields["metrics"] |= energy.per_token(len(timing.samples_ms) * calls * workload.tokens, sampled_s)
        with self._stage("check"):
            self._accepts(self._checked(workload, clock, checker, timing))

    def _timed(
        self, workload: Workload, gpu: Gpu | None, clock: Clock, checker: CallChecker
    ) -> tuple[Timing, EnergyMeter]:
        throttled = gpu.throttled if gpu else never_throttled
        metered = gpu if self.case.l2 == "warm" else None  # flushing the cache draws energy of its own
        policy = self.policy
        batches: Iterator[Sequence[float]] | None = None
        reused: list[Sequence[float]] = []  # a warm-up batch whose samples count
        if workload.engine_samples is not None:
            batches = iter(workload.engine_samples())
        elif metered:  # for the energy counter
            policy = replace(policy, budget_s=max(policy.budget_s, MIN_BLOCK_S))
        with nvtx_range(self.case.phase):
            with self._stage("warm_up"):
                if batches:
                    reused = warm_up_engine(batches, policy, clock, throttled, workload.units)
                else:
                    clock.prepare(checker.run)
                    checker.before_sample()  # before the warm-up: the GPU is idle during the first, slow refill
                    warm_up(clock, policy, throttled)
            if gpu:
                gpu.reset()  # a record's throttle reasons are those of its samples
            # The meter would miss the energy of reused samples, and count that of later prompts.
            with self._stage("sample"), EnergyMeter(None if reused else metered) as energy:
                if batches:
                    return take_engine_samples(chain(reused, batches), policy, throttled, workload.units), energy
                least_s = MIN_BLOCK_S if metered else LEAST_S
                timing = take_samples(clock, policy, throttled, checker.before_sample, least_s)
        timing.samples_ms = [sample / workload.units for sample in timing.samples_ms]
        return timing, energy

    def _checked(self, workload: Workload, clock: Clock, checker: CallChecker, timing: Timing) -> Checks:
        bound = lower_bound_check(self.case, workload, timing.samples_ms)
        if workload.engine_samples is None:
            checked = checker.checked_call(clock, median(timing.samples_ms) * workload.units * clock.launches)
        elif workload.timed_check:
            checked = unless_out_of_memory(lambda: _check_engine(workload))
        else:
            checked = Checks([], "the engine's outputs were not compared with a reference")
        return checked + Checks([*claim_checks(self.case, workload), *bound])

    def _end(self, status: str, reason: str) -> None:
        # Only "ok" records have samples and metrics computed from them.
        self._fields |= {"status": status, "reason": reason, "metrics": self._build_metrics} | vars(Timing([], [], ""))


def _machine_after(workload: Workload, gpu: Gpu | None) -> dict[str, Any]:
    # `gpu` stores the throttle reasons of all samples and, if one is thermal, the peak temperature.
    after = snapshot(workload.device)
    if gpu and after["gpu"]:
        after["gpu"]["temperature_c"] = gpu.peak_celsius or after["gpu"]["temperature_c"]
        after["gpu"]["throttle_reasons"] = sorted(gpu.seen_reasons.union(after["gpu"]["throttle_reasons"]))
    return after


def _check_engine(workload: Workload) -> Checks:
    assert workload.timed_check is not None
    return workload.timed_check(Random(secrets.randbits(128)))(None, 1)
