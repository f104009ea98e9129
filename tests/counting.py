"""How much a function does, counted in calls of Python functions: no clock, so no machine or load decides."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_of(do: Callable[..., object], *arguments: object) -> int:
    """How many Python functions `do` calls."""
    count = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        do(*arguments)
    finally:
        sys.setprofile(None)
    return count
