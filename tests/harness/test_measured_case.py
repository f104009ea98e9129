import re
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fake_systems import Fake, OutOfMemoryError
from harness_helpers import QUICK, case

from harness.measure import measured_case
from harness.measure.gate import Check, Verdict
from harness.measure.inspection import NO_ROOM
from harness.measure.measured_case import CaseRun
from harness.measure.nvml import Cooler
from harness.measure.process_state import is_out_of_memory
from harness.measure.system import Input, Workload
from harness.schema.case import Case, Mode
from harness.schema.policy import Policy


class Counting(Fake):
    """Counts its calls in `events`."""

    def __init__(self, **changes: Any) -> None:
        self.events: list[str] = []
        self.changes = changes

    def build(self, case: Any) -> Workload:
        self.events.append("build")
        workload = super().build(case)
        gate, run = workload.gate, workload.run
        workload.gate = self._noting("gate", gate) if gate else None
        workload.run = self._noting("run", run)
        workload.close = self._noting("close", workload.close)
        for name, value in self.changes.items():
            setattr(workload, name, value)
        return workload

    def _noting(self, name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            self.events.append(name)
            return call()

        return noted


def test_the_first_check_precedes_all_runs_and_close_is_last() -> None:
    system = Counting()
    record = CaseRun(case(), QUICK).record(system)
    assert record.status == "ok"
    assert system.events[:3] == ["build", "gate", "run"]
    assert system.events[-1] == "close"
    assert system.events.count("gate") == system.events.count("close") == 1


@pytest.mark.parametrize("do", ["miss", "nan"])
def test_a_failed_first_check_has_no_timing(do: str) -> None:
    system = Counting()
    record = CaseRun(case(do), QUICK).record(system)
    assert (record.status, record.samples_ms, record.peak_memory_bytes) == ("incorrect", [], None)
    assert record.gate is not None
    assert not record.gate["passed"]
    assert record.reason.startswith("error is ")
    assert "run" not in system.events
    assert system.events[-1] == "close"


def test_verify_stops_after_the_first_check() -> None:
    system = Counting()
    record = CaseRun(case(), QUICK, "verify").record(system)
    assert system.events == ["build", "gate", "close"]
    assert (record.status, record.samples_ms) == ("ok", [])
    assert record.metrics["parameters"] == 7


def test_verify_without_a_reference_claims_nothing() -> None:
    record = CaseRun(case("ungated"), QUICK, "verify").record(Fake())
    assert record.status == "skipped"
    assert "no reference" in record.reason


def test_a_sample_is_of_one_unit() -> None:
    torch = pytest.importorskip("torch")

    class Stepping(Fake):
        def build(self, case: Any) -> Workload:
            workload, out = super().build(case), torch.zeros(16, case.batch)
            run = workload.run
            workload.run = lambda: (run(), out.clone())[1]
            return workload

    whole, part = (
        CaseRun(case(phase="generate", options={"units": units}), QUICK).record(Stepping()) for units in (1, 16)
    )
    assert min(part.samples_ms) == pytest.approx(2.0 / 16, rel=0.5)
    assert min(whole.samples_ms) == pytest.approx(2.0, rel=0.5)
    assert part.tokens == whole.tokens == 2


def test_engine_samples_stay_as_they_are() -> None:
    record = CaseRun(case("engine", timing="graph"), QUICK).record(Fake())
    assert (record.samples_ms, record.stop) == ([1.0, 2.0, 3.0], "budget")


def test_settings_have_the_budget_of_the_samples() -> None:
    allowed = {"budget_s": "0.0", "min_samples": "3", "warmup_s": "0.0"}
    settings = CaseRun(case(), QUICK).record(Fake()).settings
    assert settings.items() >= allowed.items()
    assert "pid" in settings  # those of the adapter stay
    for do in ("engine", "raise"):
        assert CaseRun(case(do), QUICK).record(Fake()).settings.items() >= allowed.items()


def test_a_record_has_the_time_of_each_stage() -> None:
    record = CaseRun(case(), QUICK).record(Fake())
    assert list(record.stages_s) == ["build", "gate", "warm_up", "sample", "check"]
    assert sum(record.samples_ms) / 1e3 <= record.stages_s["sample"] <= sum(record.stages_s.values()) <= record.wall_s
    missed = CaseRun(case("miss"), QUICK).record(Fake())
    assert list(missed.stages_s) == ["build", "gate"]


def test_the_reference_is_a_stage_of_its_own() -> None:
    torch = pytest.importorskip("torch")

    def judge(outputs: Any, calls: int) -> Verdict:
        time.sleep(0.3)
        return Verdict([Check.at_most("error", 0.0, 1.0)])

    class Slow(Fake):
        def build(self, case: Any) -> Workload:
            out = torch.ones(case.batch)
            return Workload(run=out.clone, tokens=case.batch * case.context, witness=lambda chance: judge)

    record = CaseRun(case(), QUICK).record(Slow())
    assert record.status == "ok", record.reason
    assert list(record.stages_s) == ["build", "warm_up", "sample", "reference", "check"]
    assert record.stages_s["reference"] >= 0.3
    assert record.stages_s["reference"] + record.stages_s["check"] <= record.wall_s


def no_profiler(case: Case, workload: Workload, throttled: Callable[[], bool]) -> dict[str, Any]:
    return {}


def test_only_sampled_cases_have_the_budget_in_their_settings() -> None:
    for mode, do in [("verify", "work"), ("profile", "work"), ("measure", "miss"), ("measure", "skip")]:
        profiler = no_profiler if mode == "profile" else None
        assert "budget_s" not in CaseRun(case(do), QUICK, mode, profiler).record(Fake()).settings


@pytest.mark.parametrize("change", [{"timing": "graph"}, {"l2": "cold"}])
def test_a_cpu_has_neither_graphs_nor_a_cold_l2(change: dict) -> None:
    record = CaseRun(case(**change), QUICK).record(Fake())
    assert record.status == "skipped"
    assert "needs a CUDA device" in record.reason


@pytest.mark.parametrize(
    ("do", "status", "reason"),
    [
        ("raise", "failed", "RuntimeError: first line of kernel.cu (fake_systems.py, line N)"),
        ("leave", "failed", "SystemExit: the library gave up (fake_systems.py, line N)"),
        ("oom-inside", "oom", "RuntimeError: the engine could not start"),
    ],
)
def test_an_exception_becomes_the_reason_and_keeps_earlier_fields(do: str, status: str, reason: str) -> None:
    run = CaseRun(case(do), QUICK)
    record = run.record(Fake())
    assert (record.metrics["parameters"], record.gate is not None) == (7, True)
    assert record.environment["software"]["pytest"] == pytest.__version__
    assert (record.status, re.sub(r"line \d+", "line N", record.reason), run.healthy) == (status, reason, False)


def test_a_build_without_a_workload_is_named() -> None:
    class Forgetful(Fake):
        def build(self, case: Any) -> Any:
            super().build(case)

    record = CaseRun(case(), QUICK).record(Forgetful())
    assert (record.status, record.reason.partition(" (")[0]) == (
        "failed",
        "TypeError: Forgetful.build returned None, which is no Workload",
    )


def test_an_axis_that_an_input_has_not_is_named() -> None:
    torch = pytest.importorskip("torch")

    class OffAxis(Fake):
        def build(self, case: Any) -> Workload:
            x = torch.zeros(case.batch, 3)
            return Workload(lambda: x + 1, tokens=1, inputs={"x": Input(x, "normal", 1.0, 5, None)})

    record = CaseRun(case(), QUICK).record(OffAxis())
    assert record.status == "failed"
    assert "an input of 2 axes has no axis 5, which it names" in record.reason


def test_a_skip_is_for_build_alone() -> None:
    """A Skip after the build is a failure."""
    run = CaseRun(case("skip-late"), QUICK)
    record = run.record(Fake())
    assert record.status == "failed"
    assert record.reason.startswith("Skip: it was too late to say so")
    assert not run.healthy


def test_close_that_fails_spoils_the_process_not_the_record() -> None:
    run = CaseRun(case("close"), QUICK)
    assert run.record(Fake()).status == "ok"
    assert not run.healthy


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("x"), True),
        (RuntimeError("CUDA error: out of memory\nmore"), True),
        (RuntimeError("cuBLAS: CUBLAS_STATUS_ALLOC_FAILED when calling x"), True),
        (RuntimeError("shared memory"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_is_out_of_memory(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
    wrapped = RuntimeError("engine")
    wrapped.__cause__ = error
    assert is_out_of_memory(wrapped) is expected


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode 'guess': must be one of measure, verify, profile"):
        CaseRun(case(), QUICK, "guess")


def test_workload_refuses() -> None:
    with pytest.raises(ValueError, match="device 'tpu'"):
        Workload(run=print, device="tpu")
    with pytest.raises(ValueError, match="units 0"):
        Workload(run=print, units=0)


@pytest.mark.gpu
def test_a_cuda_workload_is_measured_with_its_memory() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(1 << 24, device="cuda")

    class OnGpu(Fake):
        def build(self, case: Any) -> Workload:
            return Workload(run=lambda: x.mul(1.0), device="cuda", tokens=case.batch * case.context)

    for timing in ("eager", "graph"):
        for l2 in ("warm", "cold"):
            record = CaseRun(case(timing=timing, l2=l2), QUICK).record(OnGpu())
            assert record.status == "ok", record.reason
            assert record.peak_memory_bytes is not None
            assert record.peak_memory_bytes >= 2 * x.nbytes
            assert record.environment["gpu"]["after"]["sm_clock_mhz"] > 0
            assert len(record.throttled) == len(record.samples_ms)


class FakeDevice:
    """A GPU and its clock: a sample is 4 calls of 100 ms and 10 J."""

    launches, own_bytes, replays = 4, 1000, False
    wakes_s, settles_s, loaded_s = 0.5, 2.0, 0.0
    facts: dict[str, Any] | None = None

    def __init__(self, hot: bool = False) -> None:
        self.sampled, self.hot, self.peak_started = 0, hot, False
        self.slowed_by: set[str] = set()
        self.hottest_c: float | None = None

    def forget(self) -> None:
        self.slowed_by.clear()

    def prepare(self, run: Callable[[], object]) -> None:
        self.sampled, self.run = self.sampled + 3, run  # a first run compiles

    def sample(self) -> float:
        self.sampled += 1
        self.run()
        return 100.0

    def now(self) -> float:
        return 0.4 * self.sampled

    def energy_j(self) -> float:
        return 40.0 * self.sampled

    def throttled(self) -> bool:
        return self.hot

    def start(self) -> None:
        self.peak_started = True

    def peak_bytes(self) -> int | None:
        return 5000 if self.peak_started else 9000


@pytest.mark.parametrize("mode", ["measure", "verify", "profile"])
def test_capture_runs_once_after_the_first_check_and_its_memory_counts(
    monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    device, done = FakeDevice(), list[str]()

    def gate() -> Verdict:
        done.append("gate")
        return Verdict([])

    on_fake_device(
        monkeypatch,
        device,
        case(),
        run=lambda: done.append("run"),
        gate=gate,
        capture=lambda: done.append(f"captured, peak of this case {device.peak_started}"),
        mode=mode,
        profiler=no_profiler if mode == "profile" else None,
    )
    expected = "captured, peak of this case True"
    assert done.count(expected) == 1
    assert done[: done.index(expected)] == ([] if mode == "profile" else ["gate"])


class FakeMeter:
    """Reads a device's joules at both ends of its block."""

    def __init__(self, device: FakeDevice | None) -> None:
        self.device = device

    def __enter__(self) -> None:
        self.before = self.device.energy_j() if self.device else 0.0

    def __exit__(self, *_: object) -> None:
        self.joules = self.device.energy_j() - self.before if self.device else 0.0

    def per_token(self, tokens: int, seconds: float) -> dict[str, float | None]:
        return {"energy_j_per_token": self.joules / tokens, "seconds": seconds} if self.device else {}


def on_fake_device(monkeypatch: pytest.MonkeyPatch, device: FakeDevice, of: Any, **changes: Any) -> Any:
    """Return the record of 5 samples of 8 generate steps of 2 tokens. changes: of workload and policy."""
    torch = pytest.importorskip("torch")
    policy = Policy(**{"min_samples": 5, "budget_s": 1.0, **changes.pop("policy", {})})
    run = {name: changes.pop(name) for name in ("mode", "cooler", "profiler") if name in changes}
    workload = Workload(**{"run": lambda: torch.zeros(8, 2), "device": "cuda", "units": 8, "tokens": 2, **changes})

    class OnFake(Fake):
        def build(self, case: Any) -> Workload:
            return workload

    fakes: dict[str, Any] = {
        "open_gpu": lambda: device,
        "clock_for": lambda case, workload: device,
        "CudaPeak": lambda: device,
        "EnergyMeter": FakeMeter,
        "snapshot": lambda *kind: {"gpu": device.facts and {**device.facts}, "cpu": None, "software": {}},
        "time": SimpleNamespace(monotonic=device.now),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(measured_case, name, fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return CaseRun(replace(of, phase="generate"), policy, **run).record(OnFake())


def test_a_sample_on_a_gpu_spans_its_launches_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    def found(calls: int) -> dict[str, float]:
        told.append(calls)
        return {"steps": 2.0}

    record = on_fake_device(monkeypatch, FakeDevice(), case(), measured=found)
    assert (record.status, record.samples_ms) == ("ok", [100 / 8] * 5)
    assert record.calls == 4 * 8
    assert told == [5 * 4]  # calls of `run`, not samples
    assert record.metrics["steps"] == 2.0
    assert record.peak_memory_bytes == 5000 - 1000  # without the clock's own


@pytest.mark.parametrize(("l2", "samples"), [("warm", 3), ("cold", 2)])
def test_a_case_with_an_energy_metric_is_sampled_for_a_second(
    monkeypatch: pytest.MonkeyPatch, l2: str, samples: int
) -> None:
    """A sample takes 0.4 s."""
    policy = {"min_samples": 1, "budget_s": 0.5}
    record = on_fake_device(monkeypatch, FakeDevice(), case(l2=l2), policy=policy)
    assert len(record.samples_ms) == samples
    assert float(record.settings["budget_s"]) == (1.0 if l2 == "warm" else 0.5)


def test_energy_is_of_the_samples_alone_and_of_all_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    record = on_fake_device(monkeypatch, FakeDevice(), case())
    assert record.metrics["energy_j_per_token"] == 5 * 40.0 / (5 * 4 * 8 * 2)
    assert record.metrics["seconds"] == pytest.approx(5 * 4 * 0.1)
    # Flushing the cache draws energy of its own.
    assert "energy_j_per_token" not in on_fake_device(monkeypatch, FakeDevice(), case(l2="cold")).metrics
    # The meter decides whether an engine's samples fill the time.
    engine = {"engine_samples": lambda policy: [[100.0] * 5] * 2, "policy": {"budget_s": 0.0}}
    record = on_fake_device(monkeypatch, FakeDevice(), case(timing="engine"), **engine)
    assert record.metrics["seconds"] == pytest.approx(5 * 4 * 8 * 0.1)


class FakeCooler(Cooler):
    """Notes the number of samples before each rest, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.rested_at: list[int] = []

    def rest(self, gpu: Any) -> None:
        self.rested_at.append(gpu.sampled)
        self.goal_c = None


@pytest.mark.parametrize(("reason", "rested"), [("sw_thermal_slowdown", [0]), ("sw_power_cap", [])])
def test_a_thermally_throttled_gpu_rests_before_the_warm_up(
    monkeypatch: pytest.MonkeyPatch, reason: str, rested: list[int]
) -> None:
    device, cooler = FakeDevice(), FakeCooler()
    device.facts = {"throttle_reasons": [reason], "temperature_c": 79}
    record = on_fake_device(monkeypatch, device, case(), cooler=cooler)
    assert (record.status, cooler.rested_at) == ("ok", rested)
    assert ("cool_down" in record.stages_s) == bool(rested)
    assert (cooler.goal_c == 64) == bool(rested)  # it is as hot at the end, so the next case rests, too
    verified = FakeCooler()
    on_fake_device(monkeypatch, FakeDevice(), case(), cooler=verified, mode="verify")
    assert not verified.rested_at


def test_throttle_reasons_of_any_sample_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    device.facts = {"throttle_reasons": ["sw_power_cap"], "temperature_c": 70}
    device.slowed_by.add("hw_power_brake_slowdown")  # of the warm-up
    asked = iter(range(100))

    def throttled() -> bool:
        if next(asked) > 4:
            device.slowed_by.add("sw_thermal_slowdown")
        return True

    monkeypatch.setattr(device, "throttled", throttled)
    environment = on_fake_device(monkeypatch, device, case()).environment
    assert environment["gpu"]["after"]["throttle_reasons"] == ["sw_power_cap", "sw_thermal_slowdown"]


def test_a_profile_has_throttle_reasons_and_the_next_case_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    device, cooler = FakeDevice(), FakeCooler()
    device.facts = {"throttle_reasons": [], "temperature_c": 80}  # when the trace has been read

    def profiler(case: Case, workload: Workload, throttled: Callable[[], bool]) -> dict[str, Any]:
        assert throttled() is False
        device.slowed_by.add("sw_thermal_slowdown")
        return {}

    record = on_fake_device(monkeypatch, device, case(), cooler=cooler, mode="profile", profiler=profiler)
    assert record.environment["gpu"]["after"]["throttle_reasons"] == ["sw_thermal_slowdown"]
    assert cooler.goal_c == 65


def test_wrong_outputs_lose_samples_and_their_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Verdict([Check.at_most("timed_error", 2.0, 1.0)])
    changes = {"measured": lambda calls: {"time_to_first_token_ms": 0.1}, "metrics": {"parameters": 7.0}}
    for verdict, names in (
        (None, {"parameters", "time_to_first_token_ms", "energy_j_per_token"}),
        (wrong, {"parameters"}),
    ):
        device = FakeDevice()
        witness = (lambda chance, verdict=verdict: lambda outputs, calls: verdict) if verdict else None
        record = on_fake_device(monkeypatch, device, case(), **changes, witness=witness)
        assert record.status == ("incorrect" if verdict else "ok")
        assert names <= record.metrics.keys() <= names | {"seconds"}


def test_the_first_check_may_add_metrics() -> None:
    class Finding(Fake):
        def build(self, case: Any) -> Workload:
            workload = super().build(case)
            workload.metrics = {"parameters": 7.0}

            def gate() -> Verdict:
                workload.metrics |= {"total_variation_mean": 0.1}
                return Verdict([Check.at_most("error", 0.0, 1.0)])

            workload.gate = gate
            return workload

    record = CaseRun(case(), QUICK).record(Finding())
    assert record.status == "ok", record.reason
    assert record.metrics["total_variation_mean"] == 0.1


@pytest.mark.parametrize(
    ("tokens", "status"), [(2 * (8 + 128), "ok"), (2 * (8 + 4), "incorrect"), (10**6, "incorrect")]
)
def test_tokens_of_a_request_are_prompt_and_new_tokens(tokens: int, status: str) -> None:
    class Answers(Fake):
        def build(self, asked: Any) -> Workload:
            return Workload(run=lambda: None, tokens=tokens)

    asked = replace(case(), phase="request", batch=2, context=8)
    assert CaseRun(asked, QUICK).record(Answers()).status == status
    few = replace(asked, options=(("steps", 4),))
    assert (CaseRun(few, QUICK).record(Answers()).status == "ok") is (tokens == 2 * (8 + 4))


def test_throttling_is_queried_in_warm_up_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    cool, hot = (on_fake_device(monkeypatch, FakeDevice(hot), case()) for hot in (False, True))
    assert (cool.throttled, hot.throttled) == ([False] * 5, [True] * 5)
    # `prepare` takes 1.2 s; then four samples agree, or a power-capped load settles.
    assert cool.stages_s["warm_up"] == pytest.approx(1.2 + 1.6)
    assert hot.stages_s["warm_up"] == pytest.approx(1.2 + 2.0)
    for hot in (False, True):  # the first batch of an engine is its warm-up
        engine = {"engine_samples": lambda policy: [[1.0] * 5] * 2, "policy": {"budget_s": 0.0}}
        record = on_fake_device(monkeypatch, FakeDevice(hot), case(timing="engine"), **engine)
        assert record.throttled == [hot] * 5


def test_both_checks_of_a_case_are_recorded_together() -> None:
    torch = pytest.importorskip("torch")

    class Checked(Fake):
        missed = False

        def build(self, case: Any) -> Workload:
            workload, out = super().build(case), torch.ones(case.batch)
            checks = [Check.at_most("timed_error", 2.0 if self.missed else 0.0, 1.0)]
            workload.run, workload.witness = out.clone, lambda chance: lambda outputs, calls: Verdict(checks)
            return workload

    both = CaseRun(case(), QUICK).record(Checked())
    assert both.status == "ok", both.reason
    assert both.gate is not None
    assert [check["name"] for check in both.gate["checks"]] == ["error", "outputs_not_finite", "timed_error"]
    Checked.missed = True
    missed = CaseRun(case(), QUICK).record(Checked())
    assert (missed.status, missed.samples_ms) == ("incorrect", [])
    assert missed.reason == "timed_error is 2, limit 1"


@pytest.mark.parametrize(("tokens", "status"), [(1, "ok"), (1 << 20, "incorrect")])
def test_outputs_need_not_change_for_equal_inputs(tokens: int, status: str) -> None:
    """A sequence of one token may draw the same token again."""
    import torch

    class Constant(Fake):
        def build(self, asked: Any) -> Workload:
            ids, out = torch.zeros(asked.batch, dtype=torch.long), torch.ones(asked.batch, asked.context)
            inputs = {"ids": Input(ids, "tokens", tokens, batch_axis=0)}
            return Workload(run=out.clone, tokens=asked.batch * asked.context, inputs=inputs)

    record = CaseRun(case(), QUICK).record(Constant())
    assert record.status == status, record.reason
    assert ("outputs_unchanged_by_new_inputs" in record.reason) == (status == "incorrect")


@pytest.mark.parametrize(("timing", "l2"), [("eager", "cold"), ("graph", "warm"), ("graph", "cold")])
def test_the_clock_of_a_gpu_times_as_the_case_asks(monkeypatch: pytest.MonkeyPatch, timing: str, l2: str) -> None:
    monkeypatch.setattr(measured_case, "CudaEventClock", lambda *asked: asked)
    workload = Workload(run=print, device="cuda")
    assert measured_case.clock_for(case(timing=timing, l2=l2), workload) == (timing, l2)


def test_throttling_of_an_engines_warm_up_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    device.facts = {"throttle_reasons": [], "temperature_c": 70}
    device.slowed_by.add("sw_thermal_slowdown")
    engine = {"engine_samples": lambda policy: [[100.0] * 5] * 2, "policy": {"budget_s": 0.0}}
    environment = on_fake_device(monkeypatch, device, case(timing="engine"), **engine).environment
    assert environment["gpu"]["after"]["throttle_reasons"] == []


def test_a_record_has_the_throttled_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    device.facts, device.hottest_c = {"throttle_reasons": [], "temperature_c": 70}, 88
    environment = on_fake_device(monkeypatch, device, case()).environment
    assert environment["gpu"]["after"]["temperature_c"] == 88


def test_an_engine_without_a_check_is_noted() -> None:
    record = CaseRun(case("engine"), QUICK).record(Fake())
    assert record.gate is not None
    assert record.gate["unchecked"] == "what the engine answered was compared with nothing"


def test_a_throttled_engine_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def warm(batches: Any, policy: Any, clock: Any, throttled: Callable[[], bool] = lambda: False) -> None:
        asked.append(throttled())

    monkeypatch.setattr(measured_case, "warm_up_engine", warm)
    engine = {"engine_samples": lambda policy: [[1.0] * 5]}
    on_fake_device(monkeypatch, FakeDevice(hot=True), case(timing="engine"), **engine)
    assert asked == [True]


def test_notes_of_a_check_are_recorded() -> None:
    torch = pytest.importorskip("torch")

    class Roomless(Fake):
        def build(self, case: Any) -> Workload:
            workload, out = super().build(case), torch.ones(case.batch)
            workload.run, workload.witness = out.clone, lambda chance: lambda outputs, calls: Verdict([], NO_ROOM)
            return workload

    record = CaseRun(case(), QUICK).record(Roomless())
    assert record.gate is not None
    assert NO_ROOM in record.gate["unchecked"]
