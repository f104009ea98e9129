"""Did heat slow the GPU down, and how is it let cool before it is measured?"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from harness.nvml import THERMAL, Gpu

# Below where heat slowed a GPU down, from which it runs some seconds at its power limit before it is as hot again.
COOLER_C = 15
LONGEST_S = 20.0


def is_hot(environment: Mapping[str, Any]) -> bool:
    """Whether heat slowed the GPU down while a case ran, sampled or profiled; of a stranger's file too."""
    reasons = _reading(environment, "throttle_reasons")
    return isinstance(reasons, list) and any(isinstance(name, str) and name in THERMAL for name in reasons)


def heat_note(environment: Mapping[str, Any]) -> str:
    """What a reader must know of a case that heat slowed down."""
    celsius = _reading(environment, "temperature_c")
    at = f", at {celsius:.0f} °C" if isinstance(celsius, int | float) else ""
    return f"heat slowed the GPU down{at}"


class Cooler:
    """Lets a GPU that heat slowed down rest before the next case."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep, now: Callable[[], float] = time.monotonic) -> None:
        self._sleep, self._now = sleep, now
        self.goal_c: float | None = None  # degrees Celsius; None where it need not rest

    def saw(self, readings: Mapping[str, Any] | None) -> None:
        """Learn from `Gpu.readings`, of before a case or of its end, whether it must rest."""
        reasons, celsius = ((readings or {}).get(name) for name in ("throttle_reasons", "temperature_c"))
        if celsius is not None and THERMAL.intersection(reasons or ()):
            self.goal_c = celsius - COOLER_C

    def rest(self, gpu: Gpu) -> None:
        """Wait until the GPU is as cool as it must be, for at most `LONGEST_S`."""
        end = self._now() + LONGEST_S
        while self.goal_c is not None and self._now() < end:
            celsius = gpu.readings()["temperature_c"]
            if celsius is None or celsius <= self.goal_c:
                break
            self._sleep(0.25)
        self.goal_c = None


def _reading(environment: Mapping[str, Any], name: str) -> Any:
    """One of the GPU right after the last sample; None where there is none."""
    gpu = environment.get("gpu")
    after = gpu.get("after") if isinstance(gpu, Mapping) else None
    return after.get(name) if isinstance(after, Mapping) else None
