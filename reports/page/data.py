"""A page's JSON data for its scripts: table columns, figures and labels."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from harness.schema.catalogue import Catalogue
from harness.schema.reason import rounded
from harness.schema.record import Record
from reports.page.figures import Figure, axis_title
from reports.page.ranking import bar
from reports.profiles.section import Section
from reports.roofline import RATE_COLUMNS
from reports.stats import (
    CASE_COLUMNS,
    COMPUTED_COLUMNS,
    MARKS,
    NOTES,
    OUTCOME_COLUMNS,
    SETTING_COLUMNS,
    SIGNS,
    STATISTIC_COLUMNS,
    UNTRIED,
    marks_of,
    option_columns,
    row_keys,
)
from reports.tables import cell_text, shown, telling_apart

DIGITS = 6  # significant digits of a number
# Labels of the page's own columns. The catalogue has the labels of metrics and axes.
LABELS = {
    "suites": "Suites",
    "system": "System",
    "backend": "Backend",
    "phase": "Phase",
    "status": "Status",
    "reason": "Reason",
    "device": "Device",
    "device_id": "Device id",
    "commit": "Commit",
    "samples": "Samples",
    "processes": "Processes",
    "throttled": "Throttled",
    "stop": "Stopped by",
    "started_at": "Started",
    "bound": "Lower bound set by",
    "lower_bound_ms": "Lower bound (ms)",
    "lower_bound_share": "Share of lower bound",
    NOTES: "Notes",
    MARKS: "Flags",
}
_ALWAYS_SHOWN = ("suites", "system", "backend", "phase", "batch", "context", "status", "latency_ms")
# The columns shown at first, together with settings that separate rows. The page's menu offers the others.
_SHORT = ("system", "backend", "phase", "batch", "context", "status", "latency_ms", "us_per_token")
_SETTINGS = ("scope", "state_dtype", "l2")
_LATE = ("started_at", "device_id", "commit", "reason", NOTES)


def page_data(
    table: pd.DataFrame,
    catalogue: Catalogue,
    drawn: Sequence[Figure],
    profiles: Mapping[int, str],
) -> dict[str, Any]:
    """Return the page's data, which `page.js` reads as JSON. drawn: the page's figures.

    profiles: for the number of each row with a profile, the anchor of the profile in the page.
    """
    apart = telling_apart(table, [*SETTING_COLUMNS, *option_columns(table)])
    labels = {name: _label(name, catalogue) for name in table.columns}
    columns = _shown_columns(table, catalogue)
    values, rows = dict.fromkeys(figure.y for figure in drawn), table.to_dict("records")
    telling = [name for name in dict.fromkeys([*apart, *_SETTINGS]) if name in columns]
    return {
        "count": len(table),
        "columns": [_column(name, table[name]) for name in table.columns],
        "numeric": [name for name in table.columns if _holds_numbers(table[name])],
        "shown": columns,
        "short": [name for name in columns if name in {*_SHORT, *telling}],
        "names": _names(table, catalogue),
        "labels": labels,
        "scales": {name: scale for name in table.columns if (scale := catalogue.metric(name).scale) != 1},
        "signs": {y: [each for each in SIGNS if each[0] in marks_of(y)] for y in ("latency_ms", *values)},
        "bars": {y: [[rounded(end, DIGITS + 1) for end in bar(row, y)] for row in rows] for y in values},
        "untried": UNTRIED,
        "figures": [figure.to_dict() for figure in drawn],
        "profiles": profiles,
    }


def profiled_rows(records: list[Record], profiled: Section | None) -> dict[int, str]:
    """Return {row number: anchor of its profile} for rows whose case has a profile."""
    anchors = profiled.anchors if profiled else {}
    return {row: anchors[key] for row, key in enumerate(row_keys(records)) if key in anchors}


def _label(name: str, catalogue: Catalogue) -> str:
    if name in LABELS:
        return LABELS[name]
    if any(metric.name == name for metric in catalogue.metrics):
        return axis_title(catalogue.metric(name))
    return catalogue.axis(name).label.partition(" (")[0]


def _varied(table: pd.DataFrame) -> list[str]:
    return [name for name in table.columns if name in _ALWAYS_SHOWN or table[name].nunique(dropna=False) > 1]


def _shown_columns(table: pd.DataFrame, catalogue: Catalogue) -> list[str]:
    """Return the offered columns: case and outcome, metrics, settings, then dates and notes."""
    case = set(CASE_COLUMNS + OUTCOME_COLUMNS + STATISTIC_COLUMNS) - {"reason"}
    causes = {*RATE_COLUMNS, *COMPUTED_COLUMNS, *(metric.name for metric in catalogue.metrics)}

    def rank(name: str) -> int:
        return 0 if name in case else 1 if name in causes else 3 if name in _LATE else 2

    return sorted((name for name in _varied(table) if name != MARKS), key=rank)


def constants(table: pd.DataFrame, catalogue: Catalogue) -> dict[str, str]:
    """Return {label: value in words} of columns with one value, except `_ALWAYS_SHOWN`."""
    varied = _varied(table)
    values = {name: table[name].iloc[0] for name in table.columns if name not in varied and len(table)}
    words = {name: shown(value, catalogue.metric(name).scale) for name, value in values.items()}
    return {_label(name, catalogue): text for name, text in words.items() if text}


def _names(table: pd.DataFrame, catalogue: Catalogue) -> dict[str, dict[str, str]]:
    labels: dict[str, Callable[[str], str | None]] = {
        "system": catalogue.system_label,
        "backend": catalogue.backend_label,
        "phase": dict(catalogue.phases).get,
    }
    found = {column: {name: label(name) for name in table[column].unique()} for column, label in labels.items()}
    return {column: {name: text for name, text in names.items() if text} for column, names in found.items()}


def _holds_numbers(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _column(name: str, column: pd.Series) -> dict[str, Any]:
    """Return the column's "numbers", or its distinct "values" and each row's index in "codes"."""
    if _holds_numbers(column):
        return {"name": name, "numbers": [_number(value) for value in column.tolist()]}
    codes, found = pd.factorize(column, use_na_sentinel=False)
    values: dict[str, int] = {}
    distinct = [values.setdefault(cell_text(value), len(values)) for value in found.tolist()]
    return {"name": name, "values": list(values), "codes": [distinct[code] for code in codes.tolist()]}


def _number(value: Any) -> float | int | None:
    if value is pd.NA:
        return None
    return rounded(value, DIGITS) if isinstance(value, float) else value
