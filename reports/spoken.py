"""How a value of an axis is said: 2048 as `2k`, a setting in its phrase."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from harness.catalogue import AxisEntry


def said_x(value: float) -> str:
    """2048 as 2k and 1048576 as 1M, as on the axes."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if value >= unit and value % unit == 0:
            return f"{value / unit:g}{letter}"
    return f"{value:.15g}"


def said_setting(axis: AxisEntry, value: Any) -> str:
    """A value of an axis as captions say it: `context 2k`."""
    return axis.phrase.replace("{}", said_x(int(value)) if isinstance(value, Integral) else str(value))


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
