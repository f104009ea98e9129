from typing import Any

import pytest

from harness.measure.nvml import heat_note, is_hot


def environment(reasons: Any, celsius: Any = 79) -> dict[str, Any]:
    return {"gpu": {"after": {"throttle_reasons": reasons, "temperature_c": celsius}}}


@pytest.mark.parametrize(
    ("reasons", "hot"),
    [
        (["sw_thermal_slowdown"], True),
        (["sw_power_cap", "hw_thermal_slowdown"], True),
        (["sw_power_cap"], False),
        (None, False),
    ],
)
def test_only_thermal_reasons_count_as_hot(reasons: Any, hot: bool) -> None:
    assert is_hot(environment(reasons)) == hot


@pytest.mark.parametrize("said", [{}, {"gpu": None}])
def test_a_record_without_a_gpu_was_not_hot(said: dict[str, Any]) -> None:
    assert not is_hot(said)
    assert heat_note(said) == "thermally throttled"


def test_readings_before_the_case_do_not_count() -> None:
    hot = environment(["sw_thermal_slowdown"])["gpu"]["after"]
    assert not is_hot({"gpu": {"before": hot, "after": hot | {"throttle_reasons": []}}})


def test_the_note_has_the_temperature() -> None:
    assert heat_note(environment(["sw_thermal_slowdown"])) == "thermally throttled, at 79 °C"
