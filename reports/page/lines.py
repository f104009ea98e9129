"""Which lines does a figure have, how does each look, and what is it called?

A line refers to the rows of `stats.frame` by number.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from math import lcm
from typing import Any

import pandas as pd

from harness.schema.catalogue import DASHES, MARKERS, TONES, Catalogue, FigureEntry
from reports.stats import MACHINE_COLUMNS, SETTING_COLUMNS, option_columns
from reports.words import said_setting, short_commit

FLOOR = "floor_ms"
BETWEEN = " · "  # the parts of a line's name
_FLOOR_DASHES = ("dot", "dashdot")
_BACKBONES = {"mamba": "(M)", "transformer": "(T)"}  # as the paper calls them; their names are too long for a legend
_TIMINGS = {"graph": "timed in CUDA graphs", "eager": "timed eagerly", "engine": "timed by the engine itself"}
_REQUEST_TIMINGS = _TIMINGS | {"eager": "timed by the host's clock"}  # its steps may be replays of graphs


@dataclass(frozen=True)
class Line:
    """One (place, system, backend, size, options) of a figure: rows of the frame, in order of x.

    `tone`, `marker` and `dash` index or name its look; `hollow` sets lines of one system and backend apart. `primary`:
    it answers the figure's question; `unnamed`: it is of a system of which the figure names no backend that does.
    `short`: its name at its end. With `base_rows`, the line is the ratio of each row to the base row in the same place.
    `y` is the column of a line that is not of the figure's, such as a floor.
    """

    name: str
    short: str
    system: str
    backend: str
    tone: int
    marker: str
    dash: str
    hollow: bool
    rows: list[int]
    primary: bool = True
    unnamed: bool = False
    base_rows: list[int] = field(default_factory=list)
    y: str = ""


@dataclass(frozen=True)
class Look:
    """How a system on a backend is drawn in every figure."""

    tone: int
    marker: str
    dash: str = DASHES[0]
    hollow: bool = False


def system_looks(table: pd.DataFrame, catalogue: Catalogue) -> dict[str, Look]:
    """The tone and marker of each system; one that the catalogue does not know gets what is free."""
    looks = {entry.name: Look(entry.tone % TONES, entry.marker) for entry in catalogue.systems}
    for name in sorted(set(table["system"]) - set(looks)):
        tones = [tone for tone in range(TONES) if tone not in {look.tone for look in looks.values()}]
        markers = [marker for marker in MARKERS if marker not in {look.marker for look in looks.values()}]
        number = len(looks)
        tone = tones[0] if tones else number % TONES
        looks[name] = Look(tone, markers[0] if markers else MARKERS[number % len(MARKERS)])
    return looks


class Looks:
    """How the systems and backends of a table look, in which order they stand, and what their settings are called.

    One for all figures of a page: a system on a backend looks the same in each.
    """

    def __init__(self, table: pd.DataFrame, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.systems = system_looks(table, catalogue)
        self.drawn, self.devices = set(table["system"]), table["device"].replace("", None).nunique()
        self.order = {name: number for number, name in enumerate(self.systems)}
        backends = [entry.name for entry in catalogue.backends]
        backends += sorted(set(table["backend"]) - set(backends))
        self.backends = {name: number for number, name in enumerate(backends)}
        self.of_backends = self._backend_looks(table)

    def _backend_looks(self, table: pd.DataFrame) -> dict[tuple[str, str], Look]:
        """The look of each system on each backend: hollow where another that it stands beside has its dash."""
        dashes = {entry.name: entry.dash for entry in self.catalogue.backends}
        phases: dict[tuple[str, str], set[str]] = {}
        for system, backend, phase in zip(*(table[name] for name in ("system", "backend", "phase")), strict=True):
            phases.setdefault((system, backend), set()).add(phase)
        found: dict[tuple[str, str], Look] = {}
        for system, backend in sorted(phases, key=lambda pair: (self.order[pair[0]], self.backends[pair[1]])):
            beside = {
                (look.dash, look.hollow)
                for (other, name), look in found.items()
                if other == system and phases[other, name] & phases[system, backend]
            }
            look = replace(self.systems[system], dash=dashes.get(backend, DASHES[0]))
            found[system, backend] = _free(look, beside)
        return found

    def of_no_other(self, system: str) -> Iterator[Look]:
        """Looks for the lines of a figure of one system, without end, in colours and markers of no other on the page.

        First the system's own look, which the first line has in every figure.
        """
        looks = [look for name, look in self.systems.items() if name in self.drawn]
        own = self.systems[system]
        tones = [own.tone, *(tone for tone in range(TONES) if tone not in {look.tone for look in looks})]
        markers = [own.marker, *(each for each in MARKERS if each not in {look.marker for look in looks})]
        turn = lcm(len(tones), len(markers))  # after so many the same pairs would come again
        for number in count():
            yield Look(tones[number % len(tones)], markers[(number + number // turn) % len(markers)])

    def said(self, column: str, value: Any, phase: str = "") -> str:
        """A setting in the words of a legend or caption, in a figure of a phase; "" for one that was not set."""
        if value is None or pd.isna(value) or value == "":
            return "device not recorded" if column == "device" else ""
        if column == "system":
            return self.catalogue.system_label(value)
        if column == "backend":
            return self.catalogue.backend_label(value)
        if column in ("device", "device_id", "commit"):
            return {"device": value, "device_id": f"GPU {value}", "commit": f"commit {short_commit(value, 8)}"}[column]
        if column == "timing":
            return (_REQUEST_TIMINGS if phase == "request" else _TIMINGS).get(value, f"timing {value}")
        if column == "backbone" and value in _BACKBONES:
            return f"backbone {_BACKBONES[value]}"
        return said_setting(self.catalogue.axis(column), value)


@dataclass(frozen=True)
class FigurePanel:
    """Rows of one figure, in order of x, and what its entry says of it."""

    looks: Looks
    entry: FigureEntry
    rows: pd.DataFrame

    def identity(self) -> list[str]:
        """The columns that set two lines apart.

        How a case is timed, and which GPU of one model did it, only where one x has several: a run that is resumed may
        be of many GPUs.
        """
        case = ("system", "backend", "size", "batch", "context", *SETTING_COLUMNS, *option_columns(self.rows))
        told_late = ("timing", "device_id", self.entry.x)
        columns = [name for name in (*case, *MACHINE_COLUMNS) if name not in told_late]
        if self.rows.duplicated([*columns, "timing", self.entry.x]).any():
            columns.append("device_id")
        if self.rows.duplicated([*columns, self.entry.x]).any():
            columns.append("timing")
        return columns

    def _grouped(self, rows: pd.DataFrame, columns: list[str]) -> dict[tuple[Any, ...], list[int]]:
        """Row numbers by identity."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        keys = rows[columns].astype(object).where(rows[columns].notna(), None)
        for number, key in zip(rows.index, keys.itertuples(index=False, name=None), strict=True):
            groups.setdefault(key, []).append(number)
        return groups

    def lines(self) -> list[Line]:
        columns = self.identity()
        groups = self._grouped(self.rows, columns)
        telling = self._telling(columns)
        own_looks = self._own_looks()
        primary, named = self._primary(groups), {pair.partition("/")[0] for pair in self.entry.primary}
        lines: list[Line] = []
        for key in sorted(groups, key=lambda key: self._rank(key, columns)):
            values = dict(zip(columns, key, strict=True))
            pair = (values["system"], values["backend"])
            look = own_looks.get(values[self._told_by_look()]) or self.looks.of_backends[pair]
            line = self._line(values, telling, groups[key], look, self.looks.catalogue.backend_label(values["backend"]))
            line = replace(line, primary=pair in primary, unnamed=pair[0] not in named)
            lines.append(_set_apart(line, lines))
        return lines

    def _primary(self, groups: Iterable[tuple[Any, ...]]) -> set[tuple[str, str]]:
        """The systems and backends that answer the figure's question; all where none of these is there."""
        pairs = {(key[0], key[1]) for key in groups}
        named = {(system, backend) for system, backend in pairs if f"{system}/{backend}" in self.entry.primary}
        return named or pairs

    def _told_by_look(self) -> str:
        """The column that colour and marker say.

        It is the system; where each system has figures of its own, the state's precision or, if that is the same, the
        backend, where there are several.
        """
        differing = (name for name in ("state_dtype", "backend") if self.rows[name].nunique() > 1)
        return next(differing, "system") if "system" in self.entry.split else "system"

    def _own_looks(self) -> dict[str, Look]:
        """The look of each value of what the look says, where that is not the system."""
        column = self._told_by_look()
        if column == "system":
            return {}
        found = sorted(self.rows[column].unique(), key=lambda value: (self.looks.backends.get(value, 0), value))
        return dict(zip(found, self.looks.of_no_other(self.rows["system"].iloc[0]), strict=False))

    def _line(
        self, values: dict[str, Any], telling: dict[str, set[str]], rows: list[int], look: Look, backend_label: str
    ) -> Line:
        system, backend = values["system"], values["backend"]
        label = self.looks.catalogue.system_label(system)
        columns = [column for column, systems in telling.items() if system in systems]
        parts = [said for column in columns if (said := self.looks.said(column, values[column]))]
        by_system = self._told_by_look() == "system"
        return Line(
            name=BETWEEN.join([label, backend_label, *parts]),
            short=label if by_system else self.looks.said(self._told_by_look(), values[self._told_by_look()]),
            system=system,
            backend=backend,
            tone=look.tone,
            marker=look.marker,
            dash=look.dash,
            hollow=look.hollow,
            rows=rows,
        )

    def _telling(self, columns: list[str]) -> dict[str, set[str]]:
        """Columns worth saying, and of which systems: what differs in the figure is said of all.

        Of what only some systems have, a state's precision and options, what differs within a system is said of it.
        """
        rows, own = self.rows, {"state_dtype", *option_columns(self.rows)}
        systems, found = set(rows["system"]), {}
        for column in columns:
            if column in ("system", "backend"):
                continue
            if column in own:
                counts = self._option(column).groupby(rows["system"]).nunique(dropna=False)
                found[column] = set(counts[counts > 1].index)
            elif rows[column].nunique() > 1:
                found[column] = systems
        return found

    def _option(self, name: str) -> pd.Series:
        """The column of an option, at its default where a case does not name it."""
        column, default = self.rows[name].astype(object), self.looks.catalogue.axis(name).default
        return column if default is None else column.where(column.notna(), default)

    def _rank(self, key: tuple[Any, ...], columns: list[str]) -> tuple:
        """Systems in their order, then backends, then numbers before words."""
        values = dict(zip(columns, key, strict=True))
        own = (self.looks.order[values["system"]], self.looks.backends[values["backend"]])
        return own, [sortable(value) for value in key[2:]]

    def floors(self) -> list[Line]:
        """One line of `floor_ms` for each form: that of the state precision with the most values of x."""
        rows = self.rows
        if FLOOR not in rows or rows[FLOOR].isna().all():
            return []
        known = self._with_defaults()[rows[FLOOR].notna()]
        # Backends that do the same work share its floor, and so do the runs of it.
        shared = ("backend", "timing", "l2", "form", *MACHINE_COLUMNS)
        columns = [*(name for name in self.identity() if name not in shared), "form"]
        found: dict[tuple, tuple[dict[str, Any], list[int]]] = {}
        for key, numbers in self._grouped(known, columns).items():
            values = dict(zip(columns, key, strict=True))
            work = tuple(value for name, value in values.items() if name != "state_dtype")
            once = list(dict(zip(rows.loc[numbers, self.entry.x], numbers, strict=True)).values())
            if len(once) > len(found.get(work, ({}, []))[1]):
                found[work] = values, once
        telling = [name for name in columns if name != "system" and known[name].nunique() > 1]
        ordered = sorted(found.values(), key=lambda floor: str(floor[0].get("form")))
        return [self._floor(*floor, telling, dash) for floor, dash in zip(ordered, cycle(_FLOOR_DASHES))]

    def _with_defaults(self) -> pd.DataFrame:
        """The rows with the form of each and every option that a case does not name at its default.

        So what one backend of two does not say sets no rows of them apart.
        """
        filled = {name: self._option(name) for name in option_columns(self.rows)}
        forms = forms_of(self.rows)
        filled["form"] = forms.astype(object).where(forms.notna(), filled["form"]) if "form" in filled else forms
        return self.rows.assign(**filled)

    def _floor(self, values: dict[str, Any], rows: list[int], telling: list[str], dash: str) -> Line:
        parts = [said for name in telling if (said := self.looks.said(name, values[name]))]
        name = BETWEEN.join(["Floor", *parts])
        short = f"floor of {values['state_dtype']}" if "state_dtype" in telling else "floor"
        return Line(name, short, values["system"], "", 0, MARKERS[0], dash, False, rows, y=FLOOR)

    def _shared_label(self, backends: Iterable[str]) -> str:
        """The words that the labels of two backends begin with alike; of one backend its label."""
        labels = [self.looks.catalogue.backend_label(backend).split() for backend in backends]
        return " ".join(words[0] for words in zip(*labels, strict=False) if len(set(words)) == 1)

    def form_pairs(self) -> list[Line]:
        """Lines of primal over dual, for rows that are alike in all but the form."""
        rows, x = self.rows, self.entry.x
        forms = forms_of(rows)
        if set(forms) < {"dual", "primal"}:
            return []
        alike = self._with_defaults()
        alike["backend"] = alike["backend"].str.removesuffix("-dual").str.removesuffix("-primal")
        columns = [*(column for column in self.identity() if column not in ("form", "timing")), "timing"]
        primal, dual = (self._grouped(alike[forms == form], columns) for form in ("primal", "dual"))
        telling = self._telling(columns)
        own_looks = self._own_looks() if self._told_by_look() == "state_dtype" else {}
        lines: list[Line] = []
        for key in sorted(primal.keys() & dual.keys(), key=lambda key: [sortable(value) for value in key]):
            values = dict(zip(columns, key, strict=True))
            at_x = dict(zip(rows.loc[dual[key], x], dual[key], strict=True))
            places = zip(primal[key], rows.loc[primal[key], x], strict=True)
            pairs = [(row, at_x[at]) for row, at in places if at in at_x]
            if pairs:
                look = own_looks.get(values["state_dtype"]) or self.looks.systems[values["system"]]
                of_both = self._shared_label(rows["backend"].loc[list(pairs[0])])
                line = self._line(values, telling, [row for row, _ in pairs], look, of_both)
                line = replace(line, base_rows=[base for _, base in pairs])
                lines.append(_set_apart(line, lines))
        return lines


def _free(look: Look, beside: set[tuple[str, bool]]) -> Look:
    """The look, or where one beside it has its dash and fill the next that is free."""
    first = DASHES.index(look.dash) if look.dash in DASHES else 0
    for turn in range(len(DASHES)):
        for hollow in (look.hollow, not look.hollow):
            dash = look.dash if not turn else DASHES[(first + turn) % len(DASHES)]
            if (dash, hollow) not in beside:
                return replace(look, dash=dash, hollow=hollow)
    return look


def _set_apart(line: Line, others: Sequence[Line]) -> Line:
    """The line, beside one of `others` that looks so with another fill or dash."""
    beside = {(other.dash, other.hollow) for other in others if (other.tone, other.marker) == (line.tone, line.marker)}
    look = _free(Look(line.tone, line.marker, line.dash, line.hollow), beside)
    return replace(line, dash=look.dash, hollow=look.hollow)


def sortable(value: Any) -> tuple[int, float, str]:
    """Numbers before words."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def forms_of(rows: pd.DataFrame) -> pd.Series:
    """The form of each row: its option, or else what its backend is called after."""
    called = rows["backend"].str.extract(r"-(dual|primal)$", expand=False)
    return rows["form"].astype(object).where(rows["form"].notna(), called) if "form" in rows else called
