from collections.abc import Iterator
from typing import Any

import pytest

from harness.measure.nvml import LONGEST_S, Cooler, heat_note, is_hot


def environment(reasons: Any, celsius: Any = 79) -> dict[str, Any]:
    return {"gpu": {"after": {"throttle_reasons": reasons, "temperature_c": celsius}}}


@pytest.mark.parametrize(
    ("reasons", "hot"),
    [
        (["sw_thermal_slowdown"], True),
        (["sw_power_cap", "hw_thermal_slowdown"], True),
        (["sw_power_cap"], False),
        ([], False),
        (None, False),
        ("sw_thermal_slowdown", False),
        ([["sw_thermal_slowdown"]], False),
    ],
)
def test_only_thermal_reasons_count_as_hot(reasons: Any, hot: bool) -> None:
    assert is_hot(environment(reasons)) == hot


@pytest.mark.parametrize("said", [{}, {"gpu": None}, {"gpu": {"after": None}}, {"gpu": {}}])
def test_a_record_without_a_gpu_was_not_hot(said: dict[str, Any]) -> None:
    assert not is_hot(said)
    assert heat_note(said) == "thermally throttled"


def test_readings_before_the_case_do_not_count() -> None:
    hot = environment(["sw_thermal_slowdown"])["gpu"]["after"]
    assert not is_hot({"gpu": {"before": hot, "after": hot | {"throttle_reasons": []}}})


def test_the_note_has_the_temperature() -> None:
    assert heat_note(environment(["sw_thermal_slowdown"])) == "thermally throttled, at 79 °C"


def test_only_a_thermal_slowdown_sets_a_goal() -> None:
    hot = {"throttle_reasons": ["sw_thermal_slowdown"], "temperature_c": 79}
    cooler = Cooler()
    for readings in (hot | {"throttle_reasons": ["sw_power_cap"]}, hot | {"temperature_c": None}, {}, None):
        cooler.saw(readings)
        assert cooler.goal_c is None
    cooler.saw(hot)
    cooler.saw(hot | {"throttle_reasons": ["sw_power_cap"]})  # between the end of a case and the next
    assert cooler.goal_c == 64


class FakeGpu:
    def __init__(self, celsius: Iterator[float | None]) -> None:
        self.celsius, self.slept = celsius, 0.0

    def readings(self) -> dict[str, Any]:
        return {"temperature_c": next(self.celsius)}

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def cools(self) -> float:
        cooler = Cooler(self.sleep, lambda: self.slept)
        cooler.saw({"throttle_reasons": ["sw_thermal_slowdown"], "temperature_c": 79})
        cooler.rest(self)  # type: ignore[arg-type]
        assert cooler.goal_c is None
        return self.slept


def test_a_gpu_rests_until_cool_or_at_most_the_limit() -> None:
    assert FakeGpu(iter([79, 70, 64])).cools() == 0.5
    assert FakeGpu(iter([64])).cools() == 0
    assert FakeGpu(iter([None])).cools() == 0
    assert FakeGpu(iter([79] * 1000)).cools() == LONGEST_S
