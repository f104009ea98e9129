"""Write the table of results as CSV, JSON, Markdown or text."""

import json
import shutil
from collections.abc import Sequence
from typing import Any, TextIO

import pandas as pd

from harness.schema.catalogue import Catalogue
from harness.schema.reason import printable
from harness.schema.record import RecordError, json_values
from reports.grid import escaped, markdown, text
from reports.stats import FLAGS, OUTCOME_COLUMNS, option_columns
from reports.words import short_commit

MAX_COLUMNS = 8  # in a Markdown or text table without --columns, unless more are needed to distinguish rows
_CASE = ("system", "backend", "phase", "batch", "context")


def write_frame(table: pd.DataFrame, fmt: str, out: TextIO, catalogue: Catalogue, columns: Sequence[str]) -> None:
    """Write a table of `stats.frame` to `out`.

    fmt: "csv", "json", "markdown" or "text"; Markdown and text show numbers in the catalogue's units.
    columns: names of the columns to write; ("all",) for all columns.
        (): all columns for "csv" and "json", a selection of columns for "markdown" and "text".
    Raises RecordError for an unknown column.
    """
    for name in columns:
        if name not in table and name != "all":
            raise RecordError(f"--columns {name}: no such column; there are {', '.join(table.columns)}")
    chosen = [*table.columns] if "all" in columns else list(dict.fromkeys(columns))
    if fmt in ("csv", "json"):
        out.write({"csv": csv_text, "json": _json_text}[fmt](table[chosen or list(table.columns)]))
    else:
        _write_formatted(table, fmt, out, catalogue, chosen)


def plain(value: Any) -> Any:
    """Return a cell as a JSON value: Python numbers, lists, and None for NaN and infinity."""
    return None if value is pd.NA else json_values(value)


def cell_text(value: Any) -> str:
    """Return a cell as text, with all digits of a number; "" for an unknown value."""
    value = plain(value)
    if isinstance(value, list):
        return ", ".join(value)
    return "" if value is None else str(value)


def csv_text(table: pd.DataFrame) -> str:
    """Return the table as CSV with all digits; a spreadsheet runs no cell's text as a formula."""
    return table.map(_csv_cell).rename(columns=_csv_cell).to_csv(index=False)


def _csv_cell(value: Any) -> str:
    text = printable(cell_text(value))
    return f"'{text}" if text.lstrip()[:1] in {*"=+-@"} and not isinstance(plain(value), int | float) else text


def _json_text(table: pd.DataFrame) -> str:
    rows = [{name: plain(value) for name, value in row.items()} for row in table.to_dict("records")]
    return json.dumps(rows, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write_formatted(table: pd.DataFrame, fmt: str, out: TextIO, catalogue: Catalogue, chosen: list[str]) -> None:
    names = chosen or _chosen(table, catalogue)
    constant = {} if chosen else _constant_columns(table, names)
    if words := ", ".join(f"{name} {text}" for name, text in constant.items()):
        out.write(f"in every row: {words}\n\n")
    metrics = [catalogue.metric(name) for name in names]
    head = [printable(f"{each.name} [{each.unit}]" if each.scale != 1 else each.name) for each in metrics]
    columns = [[shown(value, each.scale) for value in table[each.name]] for each in metrics]
    numeric = [pd.api.types.is_numeric_dtype(table[name]) for name in names]
    rows = list(zip(*columns, strict=True))
    if fmt == "markdown":
        out.write(markdown(head, [[*map(escaped, row)] for row in rows], numeric))
    else:
        out.write(text(head, rows, numeric, shutil.get_terminal_size().columns if out.isatty() else None))


def _chosen(table: pd.DataFrame, catalogue: Catalogue) -> list[str]:
    ok = table["status"] == "ok"
    names = [
        *(name for name in (*_CASE, "device") if name in ("system", "backend") or _varies(table, name)),
        *distinguishing(table, [*option_columns(table), "size", "state_dtype", "dtype", "l2"]),
        *([] if ok.all() else ["status"] if ok.any() else OUTCOME_COLUMNS),
        "latency_ms",
    ]
    flags = [FLAGS] if FLAGS in table else []
    numbers = [each.name for each in catalogue.metrics if each.text and each.name in table and each.name not in names]
    varied = [name for name in numbers if _varies(table, name)]
    return [*names, *varied[: max(1, MAX_COLUMNS - len(names) - len(flags))], *flags]


def distinguishing(table: pd.DataFrame, settings: Sequence[str]) -> list[str]:
    """Choose settings that distinguish rows of equal system, backend, phase, batch and context."""
    found: list[str] = []
    while True:
        equal = table[table.duplicated([*_CASE, *found], keep=False)]
        left = {name: int(equal.duplicated([*_CASE, *found, name]).sum()) for name in settings if name not in found}
        best = min(left, key=left.__getitem__, default="")
        if not best or left[best] >= equal.duplicated([*_CASE, *found]).sum():
            return found
        found.append(best)


def _varies(table: pd.DataFrame, name: str) -> bool:
    return bool(table[name].nunique(dropna=False) > 1)


def _constant_columns(table: pd.DataFrame, names: Sequence[str]) -> dict[str, str]:
    wanted = ("suites", "size", "phase", "batch", "context", "dtype", "timing", "device", "commit")
    columns = [name for name in wanted if name not in names and len(table) and table[name].nunique(dropna=False) == 1]
    found = {name: printable(cell_text(table[name].iloc[0])) for name in columns}
    return {name: short_commit(text) if name == "commit" else text for name, text in found.items() if text}


def shown(value: Any, scale: float) -> str:
    """Return a cell as text: a number is divided by `scale`, a float rounded for display."""
    number = plain(value)
    if isinstance(number, int | float) and not isinstance(number, bool) and scale != 1:
        number = number / scale
    if isinstance(number, float):
        return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
    return printable(cell_text(value))
