"""Records of cases on a fake GPU: launches, energy, throttling, memory."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fake_systems import Fake
from harness_helpers import case, no_profiler

from harness.measure import inspection, measured_case
from harness.measure.correctness import Check, Checks
from harness.measure.measured_case import CaseRun
from harness.measure.system import Workload
from harness.schema.case import Case, Mode
from harness.schema.policy import Policy

torch = pytest.importorskip("torch")
ENGINE: dict[str, Any] = {"engine_samples": lambda: [[100.0] * 5] * 2, "policy": {"budget_s": 0.0}}


class FakeDevice:
    """Stands in for a GPU and its clock: a sample has 4 calls, and each call takes 100 ms and 10 J."""

    launches, own_bytes, replays = 4, 1000, False
    wakes_s, settles_s, loaded_s = 0.5, 2.0, 0.0
    facts: dict[str, Any] | None = None

    def __init__(self, hot: bool = False) -> None:
        self.sampled, self.hot, self.peak_started = 0, hot, False
        self.seen_reasons: set[str] = set()
        self.peak_celsius: float | None = None

    def clock(self, *requested: str) -> "FakeDevice":
        self.requested = requested
        return self

    def reset(self) -> None:
        self.seen_reasons.clear()

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


@pytest.mark.parametrize(("timing", "l2"), [("eager", "cold"), ("graph", "warm"), ("graph", "cold")])
def test_the_clock_has_the_timing_and_l2_of_the_case(monkeypatch: pytest.MonkeyPatch, timing: str, l2: str) -> None:
    device = FakeDevice()
    on_fake_device(monkeypatch, device, case(timing=timing, l2=l2))
    assert device.requested == (timing, l2)


@pytest.mark.parametrize("mode", ["measure", "verify", "profile"])
def test_capture_runs_once_after_the_first_check_and_its_memory_counts(
    monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    device, done = FakeDevice(), list[str]()

    def check() -> Checks:
        done.append("check")
        return Checks([])

    on_fake_device(
        monkeypatch,
        device,
        case(),
        run=lambda: done.append("run"),
        check=check,
        capture=lambda: done.append(f"captured, peak of this case {device.peak_started}"),
        mode=mode,
        profiler=no_profiler if mode == "profile" else None,
    )
    expected = "captured, peak of this case True"
    assert done.count(expected) == 1
    assert done[: done.index(expected)] == ([] if mode == "profile" else ["check"])


class FakeMeter:
    def __init__(self, device: FakeDevice | None) -> None:
        self.device = device

    def __enter__(self) -> "FakeMeter":
        self.before = self.device.energy_j() if self.device else 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self.joules = self.device.energy_j() - self.before if self.device else 0.0

    def per_token(self, tokens: int, seconds: float) -> dict[str, float | None]:
        return {"energy_j_per_token": self.joules / tokens, "seconds": seconds} if self.device else {}


def on_fake_device(monkeypatch: pytest.MonkeyPatch, device: FakeDevice, of: Any, **changes: Any) -> Any:
    """Measure the case `of` in phase generate on a fake GPU; return its record.

    changes: mode and profiler go to `CaseRun`; policy is a dict for `Policy`; all others are fields of the `Workload`.
    """
    policy = Policy(**{"min_samples": 5, "budget_s": 1.0, **changes.pop("policy", {})})
    run = {name: changes.pop(name) for name in ("mode", "profiler") if name in changes}
    workload = Workload(**{"run": lambda: torch.zeros(8, 2), "device": "cuda", "units": 8, "tokens": 2, **changes})

    class OnFake(Fake):
        def build(self, case: Any) -> Workload:
            return workload

    fakes: dict[str, Any] = {
        "open_gpu": lambda: device,
        "CudaEventClock": device.clock,
        "reset_peak": lambda kind: device.start(),
        "peak_bytes": lambda kind: device.peak_bytes(),
        "EnergyMeter": FakeMeter,
        "snapshot": lambda *kind: {"gpu": device.facts and {**device.facts}, "cpu": None, "software": {}},
        "time": SimpleNamespace(monotonic=device.now),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(measured_case, name, fake)
    monkeypatch.setattr(inspection, "time", fakes["time"])  # on a busy machine, real checks of work after the call fail
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return CaseRun(replace(of, phase="generate"), policy, **run).record(OnFake())


def test_a_sample_on_a_gpu_spans_its_launches_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    calls_seen: list[int] = []

    def found(calls: int) -> dict[str, float]:
        calls_seen.append(calls)
        return {"steps": 2.0}

    record = on_fake_device(monkeypatch, FakeDevice(), case(), measured=found)
    assert (record.status, record.samples_ms) == ("ok", [100 / 8] * 5)
    assert record.calls == 4 * 8
    assert calls_seen == [5 * 4]  # calls of `run`, not samples
    assert record.metrics["steps"] == 2.0
    assert record.peak_memory_bytes == 5000 - 1000  # without `own_bytes` of the clock


@pytest.mark.parametrize(("l2", "samples", "steady"), [("warm", 3, 26), ("cold", 2, 20)])
def test_a_case_with_an_energy_metric_is_sampled_for_a_second(
    monkeypatch: pytest.MonkeyPatch, l2: str, samples: int, steady: int
) -> None:
    policy = {"min_samples": 1, "budget_s": 0.5}
    record = on_fake_device(monkeypatch, FakeDevice(), case(l2=l2), policy=policy)
    assert len(record.samples_ms) == samples
    monkeypatch.setattr(FakeDevice, "now", lambda self: 0.04 * self.sampled)  # no sample differs from another
    record = on_fake_device(monkeypatch, FakeDevice(), case(l2=l2), policy=policy | {"budget_s": 10.0})
    assert len(record.samples_ms) == steady


def test_energy_is_of_the_samples_alone_and_of_all_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    record = on_fake_device(monkeypatch, FakeDevice(), case())
    assert record.metrics["energy_j_per_token"] == 5 * 40.0 / (5 * 4 * 8 * 2)
    assert record.metrics["seconds"] == pytest.approx(5 * 4 * 0.1)
    # Flushing the cache draws energy of its own.
    assert "energy_j_per_token" not in on_fake_device(monkeypatch, FakeDevice(), case(l2="cold")).metrics
    # The meter decides whether an engine's samples fill the time.
    record = on_fake_device(monkeypatch, FakeDevice(), case(timing="engine"), **ENGINE)
    assert record.metrics["seconds"] == pytest.approx(5 * 4 * 8 * 0.1)


def test_samples_of_an_engines_warm_up_give_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_case, "warm_up_engine", lambda *_: [[100.0 / 3] * 5])
    record = on_fake_device(monkeypatch, FakeDevice(), case(timing="engine"), **ENGINE)
    assert (record.status, record.samples_ms) == ("ok", [33.33333] * 5)
    assert "energy_j_per_token" not in record.metrics


def test_throttle_reasons_of_any_sample_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    device.facts = {"throttle_reasons": ["sw_power_cap"], "temperature_c": 70}
    device.seen_reasons.add("hw_power_brake_slowdown")  # of the warm-up
    queries = iter(range(100))

    def throttled() -> bool:
        if next(queries) > 4:
            device.seen_reasons.add("sw_thermal_slowdown")
        return True

    monkeypatch.setattr(device, "throttled", throttled)
    environment = on_fake_device(monkeypatch, device, case()).environment
    assert environment["gpu"]["after"]["throttle_reasons"] == ["sw_power_cap", "sw_thermal_slowdown"]


def test_a_profile_has_throttle_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    device.facts = {"throttle_reasons": [], "temperature_c": 80}  # when the trace has been read

    def profiler(case: Case, workload: Workload, throttled: Callable[[], bool]) -> dict[str, Any]:
        assert throttled() is False
        device.seen_reasons.add("sw_thermal_slowdown")
        return {}

    record = on_fake_device(monkeypatch, device, case(), mode="profile", profiler=profiler)
    assert record.environment["gpu"]["after"]["throttle_reasons"] == ["sw_thermal_slowdown"]


def test_wrong_outputs_lose_samples_and_their_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Checks([Check.at_most("timed_error", 2.0, 1.0)])
    changes = {"measured": lambda calls: {"time_to_first_token_ms": 0.1}, "metrics": {"parameters": 7.0}}
    for checked, names in (
        (None, {"parameters", "time_to_first_token_ms", "energy_j_per_token"}),
        (wrong, {"parameters"}),
    ):
        device = FakeDevice()
        timed_check = (lambda rng, checked=checked: lambda outputs, calls: checked) if checked else None
        record = on_fake_device(monkeypatch, device, case(), **changes, timed_check=timed_check)
        assert record.status == ("incorrect" if checked else "ok")
        assert names <= record.metrics.keys() <= names | {"seconds"}


def test_throttling_is_queried_in_warm_up_and_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    cool, hot = (on_fake_device(monkeypatch, FakeDevice(hot), case()) for hot in (False, True))
    assert (cool.throttled, hot.throttled) == ([False] * 5, [True] * 5)
    # `prepare` takes 1.2 s; then four samples agree, or a power-capped load settles.
    assert cool.stages_s["warm_up"] == pytest.approx(1.2 + 1.6)
    assert hot.stages_s["warm_up"] == pytest.approx(1.2 + 2.0)
    for hot in (False, True):  # the first batch of an engine is its warm-up
        record = on_fake_device(monkeypatch, FakeDevice(hot), case(timing="engine"), **ENGINE)
        assert record.throttled == [hot] * 5


def test_throttling_of_an_engines_warm_up_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    device.facts = {"throttle_reasons": [], "temperature_c": 70}
    device.seen_reasons.add("sw_thermal_slowdown")
    environment = on_fake_device(monkeypatch, device, case(timing="engine"), **ENGINE).environment
    assert environment["gpu"]["after"]["throttle_reasons"] == []


def test_a_record_has_the_throttled_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice()
    device.facts, device.peak_celsius = {"throttle_reasons": [], "temperature_c": 70}, 88
    environment = on_fake_device(monkeypatch, device, case()).environment
    assert environment["gpu"]["after"]["temperature_c"] == 88


def test_a_throttled_engine_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def warm(batches: Any, policy: Any, clock: Any, throttled: Callable[[], bool], units: int) -> list[Any]:
        seen.append(throttled())
        return []

    monkeypatch.setattr(measured_case, "warm_up_engine", warm)
    engine = {"engine_samples": lambda: [[1.0] * 5]}
    assert on_fake_device(monkeypatch, FakeDevice(hot=True), case(timing="engine"), **engine).status == "ok"
    assert seen == [True]
