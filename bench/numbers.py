"""Write the tables of Markdown files from runs: python -m bench.numbers TABLES.toml FILE...

A section of the TOML file defines a table, which replaces what stands between `<!-- table NAME -->` and `<!-- end -->`:

    [linear-forward]
    run = "h100"
    value = "latency_ms"
    where = { suites = "kernel-forward", system = "ttt-linear", backend = "thunderkittens", l2 = "cold" }
    head = "ms"
    columns = [{ label = "2k", context = 2048 }, { label = "8k", context = 8192 }]
    rows = [{ label = "B=1", batch = 1 }, { label = "B=16", batch = 16 }]

`run` is a run's folder, relative to the TOML file; a column may name another one. A cell is `value` of the case that
`where`, its row and its column name by columns of `ttt-bench table`; a row or a column may name another `value`. "a|b"
is either, and a list gives as many numbers, separated by slashes. `best = "max"` (or "min") takes the best of several
cases, `scale` multiplies and `digits` (3) are the significant ones. A case that bears a mark has its sign, as in
figures, and the signs are told below.

In place of a `value`, `profile` asks the case's profile: "ms" in kernels and gaps, the share of a list of parts
(`reports.profiles.parts`) such as ["ttt", "scan"], which are ms with `unit = "ms"`, or "longest", the kernel that takes
most of the time and what bounds it.

Two kinds of rows stand beside those of cases: `given = [29.6, 116]`, one number a column, was measured elsewhere, and
`ratio = ["TTT-MLP", "ours"]` is a row above, of that label, over another one.

Tables of whole runs, `runs` and `apart`: see `run_tables`.
"""

import math
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

from bench.ending import guarded
from bench.errors import UserError, unknown
from bench.run_tables import KEY, NO_COLUMN, TABLES, Source, SourceOf, chosen, kind_of
from harness.schema.files import read_regular, refusing, write_atomically
from harness.schema.profile import Profile
from harness.schema.reason import counted
from harness.schema.record import RecordError
from harness.schema.run import Run
from reports.profiles.parts import LABELS, parts
from reports.profiles.words import longest
from reports.stats import MARKS, SIGNS, marks_in

BLOCK = re.compile(r"(<!-- table (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BEGINNING = "<!-- table "
DIGITS = 3
# Of a row, a column or the whole; no columns of the frame.
KEYS = {"value", "profile", "unit", "best", "scale", "digits"}
WHOLE = {"run", "head", "columns", "rows", "where", *KEYS}  # of a table of cases
Definitions = Mapping[str, Mapping[str, Any]]  # by the names of their tables


def with_numbers(text: str, definitions: Definitions, source_of: SourceOf) -> str:
    """The text of a file with its tables written anew. source_of: what the run has that a table names.

    Raises UserError where there is no table, or where one is not defined or finds no case.
    """
    begun, found = text.count(BEGINNING), len(BLOCK.findall(text))
    if not begun:
        raise UserError(f"has no table; one begins with {BEGINNING}NAME -->")
    if found != begun:
        raise UserError(f"{counted(begun, 'table')} begin with {BEGINNING}NAME -->, and <!-- end --> ends {found}")
    return BLOCK.sub(lambda block: block[1] + _table(block["name"], definitions, source_of) + block[3], text)


def _table(name: str, definitions: Definitions, source_of: SourceOf) -> str:
    """The lines of a table, with the meanings of its signs below."""
    if name not in definitions:
        raise unknown(f"table {name}", name, sorted(definitions))
    asked = definitions[name]
    try:
        kind = kind_of(asked)
        head, *lines = TABLES[kind](asked, source_of) if kind else _cases(asked, source_of)
    except (UserError, RecordError) as error:
        raise UserError(f"table {name}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"table {name}: its definition cannot be read: {type(error).__name__} {error}") from None
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *lines))
    meanings: dict[str, str] = {}
    for _, sign, meaning in () if kind else SIGNS:
        if f" {sign} " in table:
            meanings.setdefault(sign, meaning)  # marks may share a sign
    signs = "; ".join(f"{sign} {meaning}" for sign, meaning in meanings.items())
    return table + (f"\nSigns: {signs}.\n" if signs else "")


def _cases(asked: Mapping[str, Any], source_of: SourceOf) -> list[list[str]]:
    """The cells of a table of cases, its head first."""
    for name in asked.keys() - WHOLE:
        raise unknown(name, name, sorted(WHOLE))
    rows = asked["rows"]
    columns = [column if "run" in column else {**column, "run": asked["run"]} for column in asked["columns"]]
    sources = {run: source_of(run) for run in dict.fromkeys(column["run"] for column in columns)}
    lines = [[str(each) for each in (asked.get("head", ""), *(column["label"] for column in columns))]]
    above: dict[str, list[list[Number]]] = {}
    for row in rows:
        found = above[row["label"]] = _row(asked, row, columns, sources, above)
        if not any(number.text for cell in found for number in cell):
            raise UserError(f"row {row['label']!r}: no case of the run")
        lines.append([str(row["label"]), *map(_text, found)])
    of_cases = [row for row in rows if not {"given", "ratio"} & row.keys()]
    for column in columns:
        if of_cases and not any(Cell.of(asked, row, column).has_case(sources[column["run"]]) for row in of_cases):
            raise UserError(f"column {column['label']!r}: no case of the run")
    return lines


@dataclass(frozen=True)
class Number:
    """One number of a cell, as it is and as it is written; None where it is words, None and "" without such a case."""

    value: float | None = None
    text: str = ""


def _row(
    asked: Mapping[str, Any],
    row: Mapping[str, Any],
    columns: list[dict[str, Any]],
    sources: Mapping[str, Source],
    above: Mapping[str, list[list[Number]]],
) -> list[list[Number]]:
    """A row's numbers by column: of cases, given, or the ratio of two rows above."""
    if "given" in row:
        given = [None if number == "" else float(number) for number in row["given"]]
        if len(given) != len(columns):
            raise UserError(f"row {row['label']!r}: {len(given)} given numbers for {len(columns)} columns")
        return [[Number() if number is None else Number(number, f"{number:,.15g}")] for number in given]
    if "ratio" in row:
        upper, lower = (above[label] for label in row["ratio"])
        digits = row.get("digits", asked.get("digits", DIGITS))
        return [
            [_over(first, second, digits) for first, second in zip(*cells, strict=True)]
            for cells in zip(upper, lower, strict=True)
        ]
    return [Cell.of(asked, row, column).numbers(sources[column["run"]]) for column in columns]


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

    where: Mapping[str, Any]
    value: str = ""
    profile: str | tuple[str, ...] = ""
    unit: str = "share"
    best: str = ""
    scale: float = 1
    digits: int = DIGITS

    @classmethod
    def of(cls, table: Mapping[str, Any], row: Mapping[str, Any], column: Mapping[str, Any]) -> "Cell":
        """From the whole table, a row and a column of its definition; the later says more."""
        said: dict[str, Any] = {}
        for level in ({name: each for name, each in table.items() if name in KEYS}, row, column):
            if {"value", "profile"} <= level.keys():
                raise UserError(f"{level.get('label', 'the table')!r}: has both a value and a profile")
            if {"value", "profile"} & level.keys():
                said.pop("value", None), said.pop("profile", None)
            said |= level
        how = {name: said.pop(name) for name in KEYS & set(said)}
        del said["label"], said["run"]
        if isinstance(how.get("profile"), list):
            how["profile"] = tuple(how["profile"])
        return cls(where=dict(table.get("where", {})) | said, **how)

    def numbers(self, source: Source) -> list[Number]:
        """One for each case that it names."""
        if not self.profile and self.value not in source.rows:
            raise UserError(NO_COLUMN.format(self.value))
        return [self._number(source, where) for where in self._each_case()]

    def has_case(self, source: Source) -> bool:
        """Whether the run has one of the cases that it names, with a result or without."""
        return any(not chosen(source.rows, where).empty for where in self._each_case())

    def _each_case(self) -> Iterator[dict[str, Any]]:
        lists = {name: each if isinstance(each, list) else [each] for name, each in self.where.items()}
        return (dict(zip(lists, one, strict=True)) for one in product(*lists.values()))

    def _number(self, source: Source, where: Mapping[str, Any]) -> Number:
        found = chosen(source.rows, where)
        found = found[found[KEY].isin(source.profiles) if self.profile else found[self.value].notna()]
        if len(found) > 1 and (self.profile or not self.best):
            raise UserError(f"{len(found)} cases are {', '.join(f'{name} {each}' for name, each in where.items())}")
        if found.empty:
            return Number()
        if self.profile:
            return self._told(source.profiles[found.iloc[0][KEY]])
        one = found.sort_values(self.value, ascending=self.best != "max").iloc[0]
        borne = marks_in(one.get(MARKS), self.value)
        signs = [sign for mark, sign, _ in SIGNS if mark in borne]
        value = self.scale * float(one[self.value])
        return Number(value, " ".join([significant(value, self.digits), *signs]))

    def _told(self, profile: Profile) -> Number:
        """What is asked of a profile."""
        if profile.status != "ok":
            return Number()
        if self.profile == "longest":
            return Number(text=longest(profile))
        if self.profile == "ms":
            return Number(profile.unit_ms, significant(profile.unit_ms, self.digits))
        if isinstance(self.profile, str) or not set(self.profile) <= set(LABELS):
            raise UserError(f"profile = {self.profile!r}: must be ms, longest, or a list of {', '.join(LABELS)}")
        time_us = sum(part.time_us for part in parts(profile) if part.name in self.profile)
        if self.unit == "ms":
            time_ms = time_us / profile.units / 1e3
            return Number(time_ms, significant(time_ms, self.digits))
        if self.unit != "share":
            raise UserError(f"unit = {self.unit!r}: must be share or ms")
        return Number(time_us / profile.region_us, f"{time_us / profile.region_us:.0%}")


def significant(number: float, digits: int) -> str:
    """So many significant digits, with commas and without an exponent."""
    rounded = float(f"{number:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(0, decimals)}f}"


def main(tables: Path, files: Sequence[Path]) -> None:
    """Write the tables of Markdown files anew as `tables` defines them; none is touched where one cannot be."""
    source_of = cache(lambda run: Source.of(Run.open(tables.parent / run)))
    texts: dict[Path, tuple[str, str]] = {}
    file = tables
    try:
        definitions = tomllib.loads(read_regular(tables).decode())
        for file in files:
            before = read_regular(file).decode()
            texts[file] = before, with_numbers(before, definitions, source_of)
    except (UserError, RecordError) as error:
        raise UserError(f"{file}: {error}; no file is changed") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {getattr(error, 'strerror', error)}; no file is changed") from None
    for file, (before, text) in texts.items():
        if text != before:
            with refusing(file, "written", UserError):
                write_atomically(file, text)
        print(f"{'unchanged' if text == before else 'wrote'} {file}")


if __name__ == "__main__":
    paths = [Path(word) for word in sys.argv[1:]]
    sys.exit(guarded(partial(main, paths[0], paths[1:])) if len(paths) > 1 else __doc__)
