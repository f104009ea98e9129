"""How values are written: numbers rounded to digits, 2048 as `2k`, a setting in its phrase, lists."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import pandas as pd

from harness.schema.case import Case
from harness.schema.catalogue import AxisEntry, Catalogue


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


def rounded(number: float, digits: int) -> float | None:
    """To so many significant digits; None for what is not finite, which JSON cannot hold."""
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def said_number(number: float, digits: int = 3) -> str:
    """`3,340`, `4.46`, `4.20`: to so many significant digits, without an exponent."""
    short = rounded(number, digits)
    if short is None:
        return str(number)
    power = math.floor(math.log10(abs(short))) if short else 0
    return f"{short:,.{max(0, digits - 1 - power)}f}"


def with_sign(share: float, digits: int) -> str:
    """0.012 as `+1.2%` and -0.012 as `−1.2%`, with a real minus."""
    return f"{share:+.{digits}%}".replace("-", "−")


def share_of(number: int, whole: int, thing: str) -> str:
    """`3 of the 12 points`, `all 12 points`, `the only point`; thing: one of them, such as `point`."""
    if whole == 1:
        return f"the only {thing}"
    return f"all {whole:,} {thing}s" if number == whole else f"{number:,} of the {whole:,} {thing}s"


def left_out(rows: pd.DataFrame, catalogue: Catalogue) -> list[str]:
    """Backends whose every case was skipped for one reason: `no vLLM: its environment failed to install`.

    rows: of `stats.frame`. A backend that other systems have with other statuses is named with its system.
    """
    found = []
    for backend, own in rows.groupby("backend", sort=False):
        label = catalogue.backend_label(str(backend))
        named = {label: own}
        if not _one_reason(own):
            named = {f"{catalogue.system_label(str(name))} on {label}": of for name, of in own.groupby("system")}
        found += [f"no {name}: {why}" for name, of in named.items() if (why := _one_reason(of))]
    return found


def _one_reason(rows: pd.DataFrame) -> str:
    """Why all rows were skipped; "" where some were not, or for other reasons."""
    one = set(rows["status"]) == {"skipped"} and rows["reason"].nunique() == 1
    return str(rows["reason"].iloc[0]).rstrip(".") if one else ""


def counts_of_missing(
    missing: Iterable[Case], rows: pd.DataFrame, catalogue: Catalogue
) -> dict[tuple[str, str], tuple[str, int]]:
    """Of each (system, backend) of the cases without a record its name and how many they are.

    The backend is named where the system has several, in `rows` of `stats.frame` and these cases together.
    """
    counts = Counter((case.system, case.backend) for case in missing)
    pairs = set(counts) | set(zip(rows["system"], rows["backend"], strict=True))
    several = {system for system, number in Counter(system for system, _ in pairs).items() if number > 1}
    found = {}
    for (system, backend), number in counts.items():
        on = f" on {catalogue.backend_label(backend)}" if system in several else ""
        found[system, backend] = f"{catalogue.system_label(system)}{on}", number
    return found
