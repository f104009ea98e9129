"""Write the tables of a Markdown file from a run: each stands below a comment that says what is in it.

    <!-- numbers
    value = "latency_ms"
    where = { suites = "kernel-forward", system = "ttt-linear", backend = "thunderkittens", l2 = "cold" }
    head = "ms"
    columns = [{ label = "2k", context = 2048 }, { label = "8k", context = 8192 }]
    rows = [{ label = "B=1", batch = 1 }, { label = "B=16", batch = 16 }]
    -->
    (what was here is replaced)
    <!-- /numbers -->

A cell is `value` of the case that `where`, its row and its column name by columns of `ttt-bench table`; a row or a
column may name another `value`. "a|b" is either, and a list gives as many numbers, separated by slashes. `best = "max"`
(or "min") takes the best of several cases, `scale` multiplies, `digits` (3) are the significant ones, and
`marks = { "cache full" = "†" }` puts a sign to the cells of cases that bear a mark.

Two kinds of rows stand beside those of cases: `given = [29.6, 116]`, one number a column, was measured elsewhere, and
`ratio = ["TTT-MLP", "ours"]` is a row above, of that label, over another one.
"""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pandas as pd

from bench.errors import UserError

BLOCK = re.compile(r"(?P<head><!-- numbers\n(?P<text>.*?)-->\n)(?P<table>.*?)(?P<end><!-- /numbers -->)", re.DOTALL)
BEGINNING = "<!-- numbers\n"
DIGITS = 3
KEYS = {"value", "best", "scale", "digits"}  # of a row, a column or the whole, and no column of the frame


def with_numbers(text: str, frame: pd.DataFrame) -> str:
    """The text of a file with its tables written anew from the rows of `reports.stats.frame`.

    Raises UserError where there is no table, or where one cannot be read or finds no case.
    """
    found = list(BLOCK.finditer(text))
    if not found or len(found) != text.count(BEGINNING):
        begun = text.count(BEGINNING)
        raise UserError(f"{begun} tables begin with <!-- numbers and {len(found)} end with <!-- /numbers -->")
    return BLOCK.sub(lambda block: block["head"] + _table(block["text"], frame) + block["end"], text)


def _table(definition: str, frame: pd.DataFrame) -> str:
    """The lines of a table."""
    try:
        asked = tomllib.loads(definition)
        columns, rows = asked["columns"], asked["rows"]
        heads = [asked.get("head", ""), *(column["label"] for column in columns)]
        lines = [heads, ["---"] * len(heads)]
        above: dict[str, list[list[Number]]] = {}
        for row in rows:
            found = above[row["label"]] = _row(asked, row, columns, frame, above)
            if not any(number.value is not None for cell in found for number in cell):
                raise UserError(f"row {row['label']!r}: no case of the run")
            lines.append([row["label"], *map(_text, found)])
    except UserError:
        raise
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"a table's definition cannot be read: {type(error).__name__} {error}") from None
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


@dataclass(frozen=True)
class Number:
    """One number of a cell, as it is and as it is written; None and "" where the run has no such case."""

    value: float | None = None
    text: str = ""


def _row(
    asked: Mapping[str, Any],
    row: Mapping[str, Any],
    columns: list[Mapping[str, Any]],
    frame: pd.DataFrame,
    above: Mapping[str, list[list[Number]]],
) -> list[list[Number]]:
    """A row's numbers by column: of cases, given, or the ratio of two rows above."""
    if "given" in row:
        given = [None if number == "" else float(number) for number in row["given"]]
        if len(given) != len(columns):
            raise UserError(f"row {row['label']!r}: {len(given)} given numbers for {len(columns)} columns")
        return [[Number() if number is None else Number(number, f"{number:,g}")] for number in given]
    if "ratio" in row:
        upper, lower = (above[label] for label in row["ratio"])
        digits = row.get("digits", asked.get("digits", DIGITS))
        return [
            [_over(first, second, digits) for first, second in zip(*cells, strict=True)]
            for cells in zip(upper, lower, strict=True)
        ]
    return [Cell.of(asked, row, column).numbers(frame) for column in columns]


def _over(first: Number, second: Number, digits: int) -> Number:
    if first.value is None or second.value is None:
        return Number()
    return Number(first.value / second.value, significant(first.value / second.value, digits))


def _text(cell: list[Number]) -> str:
    """The numbers of a cell, separated by slashes; "" where there is none."""
    return " / ".join(number.text or "–" for number in cell) if any(number.text for number in cell) else ""


@dataclass(frozen=True)
class Cell:
    """What one cell asks of the run; see the module."""

    value: str
    where: Mapping[str, Any]
    best: str = ""
    scale: float = 1
    digits: int = DIGITS
    marks: Mapping[str, str] | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]) -> "Cell":
        """From the whole table, a row and a column of its definition; the later says more."""
        said = {name: each for name, each in table.items() if name in KEYS} | dict(row) | dict(column)
        how = {name: said.pop(name) for name in KEYS & set(said)}
        said.pop("label")
        return cls(where=dict(table.get("where", {})) | said, marks=table.get("marks"), **how)

    def numbers(self, frame: pd.DataFrame) -> list[Number]:
        """One for each case that it names."""
        for name in (self.value, *self.where):
            if name not in frame:
                raise UserError(f"no column {name!r}; `ttt-bench table RUN --columns all` shows them")
        lists = {name: each if isinstance(each, list) else [each] for name, each in self.where.items()}
        return [self._number(frame, dict(zip(lists, one, strict=True))) for one in product(*lists.values())]

    def _number(self, frame: pd.DataFrame, where: Mapping[str, Any]) -> Number:
        found = frame
        for name, wanted in where.items():
            found = found[found[name].map(partial(_is, wanted=wanted)).astype(bool)]
        found = found[found[self.value].notna()]
        if len(found) > 1 and not self.best:
            raise UserError(f"{len(found)} cases are {', '.join(f'{name} {each}' for name, each in where.items())}")
        if found.empty:
            return Number()
        one = found.sort_values(self.value, ascending=self.best != "max").iloc[0]
        borne = str(one.get("marks", "")).split(", ")
        signs = [sign for mark, sign in (self.marks or {}).items() if mark in borne]
        value = self.scale * float(one[self.value])
        return Number(value, " ".join([significant(value, self.digits), *signs]))


def _is(value: Any, wanted: Any) -> bool:
    """Whether a cell of the frame is what is asked for; of suites, whether it is one of them."""
    values = value if isinstance(value, tuple) else (value,)
    return any(each in values for each in (wanted.split("|") if isinstance(wanted, str) else [wanted]))


def significant(number: float, digits: int) -> str:
    """So many significant digits, with commas and without an exponent."""
    rounded = float(f"{number:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(0, decimals)}f}"
