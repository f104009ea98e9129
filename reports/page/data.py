"""A page's JSON data for its scripts: table columns, figures and labels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from harness.schema.catalogue import Catalogue
from harness.schema.reason import rounded
from reports.page.figures import Figure, axis_title
from reports.page.ranking import bar
from reports.stats import FLAGS, NOT_RUN, SETTING_COLUMNS, SIGNS, flags_of, option_columns
from reports.tables import cell_text, distinguishing

DIGITS = 6  # significant digits of a number
# Labels of columns that a run's catalogue does not label, or labels in older words.
LABELS = {
    "stop": "Stopped by",
    "started_at": "Started",
    "bound": "Lower bound set by",
    "lower_bound_ms": "Lower bound (ms)",
    "lower_bound_share": "Share of lower bound",
    FLAGS: "Flags",
}
# The columns shown at first, together with settings that separate rows. The page's menu offers the others.
_SHORT = ("system", "backend", "phase", "batch", "context", "status", "latency_ms", "us_per_token")
_SETTINGS = ("scope", "state_dtype", "l2")


def page_data(
    table: pd.DataFrame, catalogue: Catalogue, drawn: Sequence[Figure], profiles: Mapping[int, str]
) -> dict[str, Any]:
    """Return the page's data, which `page.js` reads as JSON. drawn: the page's figures.

    profiles: {row number: HTML id of the row's profile}.
    """
    varied = [name for name in _SETTINGS if name in table and table[name].nunique(dropna=False) > 1]
    short = {*_SHORT, *varied, *distinguishing(table, [*SETTING_COLUMNS, *option_columns(table)])}
    metrics, rows = dict.fromkeys(figure.y for figure in drawn), table.to_dict("records")
    return {
        "count": len(table),
        "columns": [_column(name, table[name]) for name in table.columns],
        "short": [name for name in table.columns if name in short],
        "names": _names(table, catalogue),
        "labels": {name: _label(name, catalogue) for name in table.columns},
        "scales": {name: scale for name in table.columns if (scale := catalogue.metric(name).scale) != 1},
        "signs": {y: [each for each in SIGNS if each[0] in flags_of(y)] for y in ("latency_ms", *metrics)},
        # the ends of each row's error bar as multiples of its value
        "bars": {y: [[rounded(end, DIGITS + 1) for end in bar(row, y)] for row in rows] for y in metrics},
        "not_run": NOT_RUN,
        "figures": [asdict(figure) for figure in drawn],
        "profiles": profiles,
    }


def _label(name: str, catalogue: Catalogue) -> str:
    if name in LABELS:
        return LABELS[name]
    if any(metric.name == name for metric in catalogue.metrics):
        return axis_title(catalogue.metric(name))
    if any(axis.name == name for axis in catalogue.axes):
        return catalogue.axis(name).label.partition(" (")[0]
    return name.replace("_", " ").capitalize()


def _names(table: pd.DataFrame, catalogue: Catalogue) -> dict[str, dict[str, str]]:
    phases = dict(catalogue.phases)
    labels: dict[str, Callable[[str], str]] = {
        "system": catalogue.system_label,
        "backend": catalogue.backend_label,
        "phase": lambda phase: phases.get(phase, phase),
    }
    return {column: {name: label(name) for name in table[column].unique()} for column, label in labels.items()}


def _column(name: str, column: pd.Series) -> dict[str, Any]:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return {"name": name, "numbers": [_number(value) for value in column.tolist()]}
    codes, found = pd.factorize(column, use_na_sentinel=False)
    values: dict[str, int] = {}
    distinct = [values.setdefault(cell_text(value), len(values)) for value in found.tolist()]
    return {"name": name, "values": list(values), "codes": [distinct[code] for code in codes.tolist()]}


def _number(value: Any) -> float | int | None:
    if value is pd.NA:
        return None
    return rounded(value, DIGITS) if isinstance(value, float) else value
