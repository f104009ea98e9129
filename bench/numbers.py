"""Write the tables of Markdown files from runs: python -m bench.numbers TABLES.toml FILE...

A section of the TOML file defines one table, which the command writes between `<!-- table NAME -->` and `<!-- end -->`.
The comments of `reports/results/tables.toml` describe the definitions.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pandas as pd

from bench.catalogue import CATALOGUE
from bench.catalogue.systems import ADAPTERS
from bench.ending import guarded
from bench.errors import UserError, unknown
from bench.models.config import model_config
from bench.state_size import state_bytes
from harness.quality import by_case
from harness.schema.case import Case
from harness.schema.files import read_regular, read_toml, refusing, write_atomically
from harness.schema.profile import Profile
from harness.schema.reason import counted, format_number, of_exception, span
from harness.schema.record import RecordError
from harness.schema.run import Run
from reports import grid
from reports.compare.comparison import compare
from reports.compare.views import NEAR
from reports.profiles.parts import LABELS, parts
from reports.profiles.peaks import with_common_peaks
from reports.profiles.words import longest
from reports.stats import FLAGS, SIGNS, UNSTEADY, UNSTEADY_TIMES, flags_in, frame
from reports.words import short_commit

BLOCK = re.compile(r"(<!-- table (?P<name>[\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
BEGINNING = "<!-- table "
OPTIONS = ("run", "label", "value", "profile", "unit", "scale")  # all other keys of a row or column select cases
KEY = "key of the case"  # a column of `Source.rows`

Definition = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """A run's data for tables: a row per case, and profiles by case key."""

    run: Run
    rows: pd.DataFrame
    profiles: Mapping[str, Profile]

    @classmethod
    def of(cls, run: Run) -> "Source":
        """Return a run's data; each profile has the highest peaks measured on its device in the run."""
        records, profiles = run.records(), run.profiles()
        rows = frame(records, run.catalogue, profiles.values()).assign(**{KEY: [*by_case(records)]})
        return cls(run, rows, dict(zip(profiles, with_common_peaks([*profiles.values()], records), strict=True)))


SourceOf = Callable[[str], Source]


class Number(NamedTuple):
    """The content of a table cell: a number, words or nothing."""

    value: float | None = None  # None for words or an empty cell
    text: str = ""  # the formatted number with the signs of its flags, such as †; or the words


def with_numbers(text: str, definitions: Mapping[str, Definition], source_of: SourceOf) -> str:
    """Return a Markdown file's text with all tables between comments rewritten from runs.

    definitions: sections of the TOML file, by table name. source_of: returns a run's data, given its folder's name.
    Raises UserError for a table without end comment or definition, and for a definition that has mistakes or no cases.
    """
    if text.count(BEGINNING) != len(BLOCK.findall(text)):
        raise UserError(f"a table begins with {BEGINNING}NAME --> and does not end with <!-- end -->")
    return BLOCK.sub(lambda block: block[1] + _table(block["name"], definitions, source_of) + block[3], text)


def _table(name: str, definitions: Mapping[str, Definition], source_of: SourceOf) -> str:
    if name not in definitions:
        raise unknown(f"table {name}", name, sorted(definitions))
    definition = definitions[name]
    kinds = {"runs": _runs, "apart": _run_pairs, "states": _states}
    kind = kinds.get(next(iter(definition.keys() & kinds.keys()), ""), _cases)
    try:
        head, *lines = kind(definition, source_of)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # a wrong or missing key in a definition
        words = str(error) if isinstance(error, UserError | RecordError) else of_exception(error)
        raise UserError(f"table {name}: {words}") from None
    table = grid.markdown(head, lines, [False] * len(head))
    meanings: dict[str, str] = {}
    for _, sign, meaning in SIGNS if kind is _cases else ():
        if f" {sign} " in table:
            meanings.setdefault(sign, meaning.partition(":")[0])  # several flags share a sign
    signs = "; ".join(f"{sign} {meaning}" for sign, meaning in meanings.items())
    return table + (f"\nSigns: {signs}.\n" if signs else "")


def _cases(definition: Definition, source_of: SourceOf) -> list[list[str]]:
    columns = definition["columns"]
    shared = {name: definition[name] for name in OPTIONS if name in definition} | definition.get("where", {})
    lines = [[definition.get("head", ""), *(column["label"] for column in columns)]]
    above: dict[str, list[Number]] = {}
    for row in definition["rows"]:
        if "given" in row:
            numbers = [Number() if each == "" else Number(each, f"{each:,.15g}") for each in row["given"]]
        elif "ratio" in row:
            numbers = [_ratio(*pair) for pair in zip(*(above[label] for label in row["ratio"]), strict=True)]
        else:
            numbers = [_cell(shared | row | column, source_of) for column in columns]
        above[row["label"]] = numbers
        lines.append([row["label"], *(number.text for number in numbers)])
    for label, *cells in (*lines, *zip(*lines, strict=True)):
        if not any(cells):
            raise UserError(f"{label!r}: no case of the run has this value")
    return lines


def _ratio(first: Number, second: Number) -> Number:
    if first.value is None or second.value is None:
        return Number()
    return Number(first.value / second.value, format_number(first.value / second.value))


def _cell(options: Mapping[str, Any], source_of: SourceOf) -> Number:
    source = source_of(options["run"])
    where = {name: each for name, each in options.items() if name not in OPTIONS}
    found, profile = _selected(source.rows, where), options.get("profile")
    found = found[found[KEY].isin(source.profiles) if profile else _column(found, options["value"]).notna()]
    if len(found) > 1:
        raise UserError(f"{len(found)} cases have {', '.join(f'{name} {each}' for name, each in where.items())}")
    if found.empty:
        return Number()
    row = found.iloc[0]
    if profile:
        return _from_profile(source.profiles[row[KEY]], profile, options.get("unit", "share"))
    flags = flags_in(row.get(FLAGS), options["value"])
    signs = [sign for flag, sign, _ in SIGNS if flag in flags]
    value = options.get("scale", 1) * float(row[options["value"]])
    return Number(value, " ".join([format_number(value), *signs]))


def _selected(rows: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    for name, wanted in where.items():
        values = wanted.split("|") if isinstance(wanted, str) else [wanted]
        column = _column(rows, name).astype(object).fillna("")  # "" matches an empty cell
        cells = column.map(lambda cell: cell if isinstance(cell, tuple) else (cell,))  # any element matches
        rows = rows.loc[[any(value in cell for value in values) for cell in cells]]
    return rows


def _column(rows: pd.DataFrame, name: str) -> pd.Series:
    if name not in rows:
        raise UserError(f"no column {name!r}; `ttt-bench table RUN --columns all` shows them")
    return rows[name]


def _from_profile(profile: Profile, wanted: str | list[str], unit: str) -> Number:
    if profile.status != "ok":
        return Number()
    if wanted == "longest":
        return Number(text=longest(profile))
    if wanted == "ms":
        return Number(profile.unit_ms, format_number(profile.unit_ms))
    if not set(wanted) <= set(LABELS):
        raise UserError(f"profile = {wanted!r}: must be ms, longest, or a list of {', '.join(LABELS)}")
    time_us = sum(part.time_us for part in parts(profile) if part.name in wanted)
    if unit == "ms":
        return Number(time_us / profile.units / 1e3, format_number(time_us / profile.units / 1e3))
    return Number(time_us / profile.region_us, f"{time_us / profile.region_us:.0%}")


def _runs(definition: Definition, source_of: SourceOf) -> list[list[str]]:
    lines = [["run", "GPU", "measured", "commit", "results", "contents"]]
    for each in definition["runs"]:
        lines.append([f"`{each['run']}`", *_facts(source_of(each["run"])), each["note"]])
    return lines


def _facts(source: Source) -> list[str]:
    measured = source.rows[source.rows["status"] == "ok"]
    units = len(set(filter(None, measured["device_id"])))
    names = sorted({name.removeprefix("NVIDIA ") for name in measured["device"]})
    gpu = ", ".join(names) + (f" ({counted(units, 'GPU')})" if units else "")
    began = sorted(filter(None, measured["started_at"]))
    period = span(began[0][:10], began[-1][:10])  # days
    commits = list(dict.fromkeys(short_commit(each, 8) for each in measured["commit"]))
    commit = commits[0] if len(commits) == 1 else counted(len(commits), "commit")
    flags = Counter[str]()
    for cell in measured.get(FLAGS, ()):  # a case with unsteady TTFT and unsteady ITL counts once
        unique = dict.fromkeys(UNSTEADY if each in UNSTEADY_TIMES.values() else each for each in flags_in(cell))
        flags.update(unique.keys())
    planned = sum(len(job.cases) for job in source.run.jobs)
    results = [f"{len(measured)} of {planned}", *(f"{count} {flag}" for flag, count in flags.items())]
    return [gpu, period, commit, "; ".join(results)]


def _run_pairs(definition: Definition, source_of: SourceOf) -> list[list[str]]:
    lines = [["b over a, time per token", "points", "median", *(f"within {bar:.0%}" for bar in NEAR), "farthest"]]
    for each in definition["apart"]:
        rows = compare(source_of(each["a"]).run, source_of(each["b"]).run).rows
        change = median(row.result.ratio - 1 for row in rows)
        farthest = max(rows, key=lambda row: row.relative_difference)
        within = [str(sum(row.relative_difference <= bar for row in rows)) for bar in NEAR]
        far = f"{farthest.result.ratio - 1:+.1%}: {farthest.name} {farthest.phase}"
        lines.append([each["label"], str(len(rows)), f"{change:+.1%}", *within, far])
    return lines


def _states(definition: Definition, _: SourceOf) -> list[list[str]]:
    caches = {name: state_bytes(*_sequence(name)) for name in ("transformer", "transformer-gqa")}
    lines = [["system", "state in generate, MB", *(f"tokens until a larger {name} cache" for name in ("MHA", "GQA"))]]
    for name in definition["states"]:
        state = state_bytes(*_sequence(name))
        larger_from = [f"{state // each + 1:,}" for each in caches.values()]
        lines.append([CATALOGUE.system_label(name), f"{state / 1e6:.1f}", *larger_from])
    return lines


def _sequence(name: str) -> tuple[Any, Case]:
    adapter = next(a for a in ADAPTERS if a.system == name and a.headline and "generate" in a.phases)
    case = Case(name, adapter.backend, "1.3b", "generate", 1, 1, state_dtype=adapter.state_dtype)
    return model_config(name, case.size), case


def main(tables: Path, files: Sequence[Path]) -> None:
    """Rewrite the tables of Markdown files as `tables` defines."""
    source_of = cache(lambda run: Source.of(Run.open(tables.parent / run)))
    definitions = read_toml(tables, UserError)
    for file in files:
        before = read_regular(file).decode()
        text = with_numbers(before, definitions, source_of)
        if text != before:
            with refusing(file, "written", UserError):
                write_atomically(file, text)
        print(f"{'unchanged' if text == before else 'wrote'} {file}")


if __name__ == "__main__":
    paths = [Path(word) for word in sys.argv[1:]]
    sys.exit(guarded(partial(main, paths[0], paths[1:])) if len(paths) > 1 else __doc__)
