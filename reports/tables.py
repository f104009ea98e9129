"""How do the results look as CSV, JSON or text?"""

import json
import math
from typing import Any, TextIO

import pandas as pd

from reports.roofline import EXPLANATION_COLUMNS

FORMATS = ("csv", "json", "text")
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_TEXT_COLUMNS = ("suite", "system", "backend", "size", "phase", "batch", "context", "status", "latency_ms")
# Of what explains a latency, so much fits a terminal.
_TEXT_EXPLANATIONS = ("tflops", "gbs", "bound", "floor_share")


def write_frame(table: pd.DataFrame, fmt: str, out: TextIO) -> None:
    """Write the rows of `stats.frame` to `out`; `fmt` is one of `FORMATS`, else ValueError."""
    if fmt not in FORMATS:
        raise ValueError(f"table format {fmt!r}: must be one of {', '.join(FORMATS)}")
    {"csv": _write_csv, "json": _write_json, "text": _write_text}[fmt](table, out)


def plain(value: Any) -> Any:
    """A cell as a JSON scalar: numpy scalars unwrapped; NaN, NA and infinities become None."""
    if value is None or value is pd.NA:
        return None
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_csv(table: pd.DataFrame, out: TextIO) -> None:
    table.rename(columns=_inert).map(_inert).to_csv(out, index=False, lineterminator="\n")


def _inert(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets a leading apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA_STARTS) else value


def _write_json(table: pd.DataFrame, out: TextIO) -> None:
    rows = [
        {name: plain(value) for name, value in zip(table.columns, row, strict=True)}
        for row in table.itertuples(index=False, name=None)
    ]
    json.dump(rows, out, indent=1, ensure_ascii=False, allow_nan=False)
    out.write("\n")


def _write_text(table: pd.DataFrame, out: TextIO) -> None:
    """A table for a terminal; columns that are the same in every row are said once, above it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    left_out = set(EXPLANATION_COLUMNS) - set(_TEXT_EXPLANATIONS)
    varied = [name for name in table.columns if name in _TEXT_COLUMNS or table[name].nunique(dropna=False) > 1]
    same = {name: table[name].iloc[0] for name in table.columns if name not in varied and len(table)}
    shown = [name for name in varied if name not in left_out]
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for name in shown:
        grid.add_column(name, justify="right" if pd.api.types.is_numeric_dtype(table[name]) else "left")
    for row in table[shown].itertuples(index=False, name=None):
        grid.add_row(*(Text(_printable(value)) for value in row))
    console = Console(file=out, width=None if out.isatty() else 600, highlight=False)
    if said := ", ".join(f"{name} {_printable(value)}" for name, value in same.items() if _printable(value)):
        console.print(Text(f"in every row: {said}"))
    console.print(grid)


def _printable(value: Any) -> str:
    """Four significant digits; control characters (a record may hold escape sequences) become spaces."""
    value = plain(value)
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return "".join(character if character.isprintable() else " " for character in text)
