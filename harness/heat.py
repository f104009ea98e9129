"""Did heat slow the GPU down, and how is it let cool before it is measured?"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from harness.nvml import THERMAL, Gpu

# Below where heat slowed a GPU down, from which it runs some seconds at its power limit before it is as hot again.
COOLER_C = 15
LONGEST_S = 20.0


def is_hot(environment: Mapping[str, Any]) -> bool:
    """Whether heat slowed the GPU down when the last sample of a case had been taken; of a stranger's file too."""
    reasons = _reading(environment, "throttle_reasons")
    return isinstance(reasons, list) and any(name in THERMAL for name in reasons)


def heat_note(environment: Mapping[str, Any]) -> str:
    """What a reader must know of a case that heat slowed down."""
    celsius = _reading(environment, "temperature_c")
    at = f", at {celsius:.0f} °C" if isinstance(celsius, int | float) else ""
    return f"heat slowed the GPU down{at}"


def goal_c(readings: Mapping[str, Any] | None) -> float | None:
    """To how many degrees Celsius a GPU of such readings is let cool; None where heat does not slow it down."""
    reasons, celsius = ((readings or {}).get(name) for name in ("throttle_reasons", "temperature_c"))
    return celsius - COOLER_C if celsius is not None and set(reasons or ()) & THERMAL else None


def let_cool(
    gpu: Gpu,
    to_c: float,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Rest until the GPU is so cool, for at most `LONGEST_S`."""
    end = now() + LONGEST_S
    while now() < end:
        celsius = gpu.readings()["temperature_c"]
        if celsius is None or celsius <= to_c:
            return
        sleep(0.25)


def _reading(environment: Mapping[str, Any], name: str) -> Any:
    """One of the GPU right after the last sample; None where there is none."""
    gpu = environment.get("gpu")
    after = gpu.get("after") if isinstance(gpu, Mapping) else None
    return after.get(name) if isinstance(after, Mapping) else None
