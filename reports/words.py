"""Format numbers, settings, commits and lists as text for tables and pages."""

import re
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import pandas as pd

from harness.measure.environment import DIRTY
from harness.schema.catalogue import AxisEntry, Catalogue
from harness.schema.reason import LIMIT, clipped, format_number, span

SEPARATOR = " · "  # between the parts of the name of a line or case


def format_x(value: float) -> str:
    """Return the number as text: 2048 as 2k, 1048576 as 1M, and 24.2139 as 24.2."""
    for unit, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if value >= unit and value % unit == 0:
            return f"{value / unit:g}{letter}"
    return f"{value:.15g}" if value == int(value) else format_number(value)


def format_setting(axis: AxisEntry, value: Any) -> str:
    """Return a setting in words, such as `context 2k` for the axis's phrase `context {}`."""
    return axis.phrase.replace("{}", format_x(int(value)) if isinstance(value, Integral) else str(value))


def listed(words: Sequence[str]) -> str:
    """Join words with commas and a final "and", such as `a, b and c`; "" for none."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def days(started: Iterable[str]) -> str:
    """Return the first and last day of ISO 8601 times as text; "" without times."""
    found = sorted({time[:10] for time in started if time})
    return span(found[0], found[-1]) if found else ""


def share_of(number: int, whole: int, thing: str) -> str:
    """Return `3 of the 12 points`, `all 12 points` or, if `whole` is 1, `the only point`."""
    if whole == 1:
        return f"the only {thing}"
    return f"all {whole:,} {thing}s" if number == whole else f"{number:,} of the {whole:,} {thing}s"


def short_commit(commit: str, digits: int = 10) -> str:
    """Return a commit with its hash shortened to `digits` characters; a suffix `DIRTY` stays."""
    name, suffix = commit.removesuffix(DIRTY), DIRTY if commit.endswith(DIRTY) else ""
    return (name[:digits] if re.fullmatch(r"[0-9a-f]{11,}", name) else name) + suffix


def left_out(rows: pd.DataFrame, catalogue: Catalogue) -> list[str]:
    """Return phrases on backends that skipped all cases, such as `no vLLM: there is no CUDA GPU`.

    If some systems of a backend ran, or the reasons differ, each skipped system has a phrase: `no Mamba on vLLM: ...`.
    """
    found = []
    for backend, own in rows.groupby("backend", sort=False):
        label = catalogue.backend_label(str(backend))
        named = {label: own}
        if len(_reasons(own)) != 1:
            named = {f"{catalogue.system_label(str(name))} on {label}": of for name, of in own.groupby("system")}
        found += [f"no {name}: {clipped('; '.join(why), LIMIT)}" for name, of in named.items() if (why := _reasons(of))]
    return found


def _reasons(rows: pd.DataFrame) -> list[str]:
    skipped = set(rows["status"]) == {"skipped"}
    return [str(reason).rstrip(".") for reason in rows["reason"].unique()] if skipped else []
