"""Which lines does each figure have, and what was held fixed in it?

A figure refers to the rows of `stats.frame` by number; the page draws it (`figures.js`), so that one
copy of the numbers serves figures, tables and downloads.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from typing import Any

import pandas as pd

from harness.catalogue import Catalogue, ClaimEntry, FigureEntry, MetricEntry
from harness.interval import FEWEST
from reports.stats import MACHINE_COLUMNS, NOTES, SETTING_COLUMNS, option_columns

TONES = 8
MARKERS = ("circle", "square", "diamond", "triangle-up", "pentagon", "triangle-down", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
FLOOR = "floor_ms"
_FLOOR_DASHES = ("dot", "dashdot")
WIDE_RANGE = 30  # largest over smallest value of a figure, from which its first choice of axis is logarithmic
_TIMINGS = {"graph": "timed in CUDA graphs", "eager": "timed eagerly", "engine": "timed by the engine itself"}
_ALIKE_MACHINES = "lines join no points of different machines or commits"


@dataclass(frozen=True)
class Line:
    """One (place, system, backend, size, options) of a figure: rows of the frame, in order of x.

    `tone`, `marker` and `dash` index or name its look; `hollow` sets lines of one system and backend
    apart. `primary`: it answers the figure's question. `short`: its name at its end. With `base_rows`, the line is
    the ratio of each row to the base row in the same place. `y` is the column of a line that is not of the figure's,
    such as a floor.
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
    base_rows: list[int] = field(default_factory=list)
    y: str = ""


@dataclass(frozen=True)
class Figure:
    """What the page needs to draw one figure; `x` and `y` are columns, `y_log` its first choice of axis."""

    id: str
    suite: str
    title: str
    source: str
    caption: str
    x: str
    y: str
    x_title: str
    y_label: str
    y_title: str
    y_log: bool
    best: bool
    lines: list[Line]
    headline: bool = False  # it answers the question of its run
    claims: tuple[ClaimEntry, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Look:
    """How a system on a backend is drawn in every figure."""

    tone: int
    marker: str
    dash: str = DASHES[0]
    hollow: bool = False


def figures(table: pd.DataFrame, catalogue: Catalogue) -> list[Figure]:
    """The figures of the suites in `table` (of `stats.frame`), those with primary lines first."""
    drawing = _Drawing(_with_place(table), catalogue)
    plans = sorted(drawing.plans(), key=lambda plan: not plan[1].primary)
    return _apart([figure for plan in plans for figure in drawing.drawn(*plan)])


def _apart(drawn: list[Figure]) -> list[Figure]:
    """The figures, those of one id numbered."""
    seen: dict[str, int] = {}
    for number, figure in enumerate(drawn):
        seen[figure.id] = seen.get(figure.id, 0) + 1
        if seen[figure.id] > 1:
            drawn[number] = replace(figure, id=f"{figure.id}-{seen[figure.id]}")
    return drawn


def system_looks(table: pd.DataFrame, catalogue: Catalogue) -> dict[str, Look]:
    """The tone and marker of each system; one that the catalogue does not know gets what is free."""
    looks = {entry.name: Look(entry.tone % TONES, entry.marker) for entry in catalogue.systems}
    for name in sorted(set(table["system"]) - set(looks)):
        tones = [tone for tone in range(TONES) if tone not in {look.tone for look in looks.values()}]
        markers = [marker for marker in MARKERS if marker not in {look.marker for look in looks.values()}]
        number = len(looks)
        looks[name] = Look(tones[0] if tones else number % TONES, markers[0] if markers else MARKERS[number % 7])
    return looks


def axis_title(entry: MetricEntry) -> str:
    """The label of a metric with its unit."""
    return f"{entry.label} ({entry.unit})" if entry.unit else entry.label


def _with_place(table: pd.DataFrame) -> pd.DataFrame:
    """Where one machine alone is known, records that broke before naming theirs belong to it; so with its commit."""
    values = {}
    for name in MACHINE_COLUMNS:
        known = [value for value in table[name].unique() if value]
        if len(known) == 1:
            lost = (table[name] == "") & (table["status"] != "ok")
            values[name] = table[name].where(~lost, known[0])
    return table.assign(**values)


class _Drawing:
    """The table, its catalogue and the looks that all figures share."""

    def __init__(self, table: pd.DataFrame, catalogue: Catalogue) -> None:
        self.table, self.catalogue = table, catalogue
        self.systems = system_looks(table, catalogue)
        self.order = {name: number for number, name in enumerate(self.systems)}
        backends = [entry.name for entry in catalogue.backends]
        backends += sorted(set(table["backend"]) - set(backends))
        self.backends = {name: number for number, name in enumerate(backends)}
        self.looks = self._backend_looks()

    def _backend_looks(self) -> dict[tuple[str, str], Look]:
        """The look of each system on each backend: hollow where another that it stands beside has its dash."""
        dashes = {entry.name: entry.dash for entry in self.catalogue.backends}
        phases: dict[tuple[str, str], set[str]] = {}
        for system, backend, phase in zip(*(self.table[name] for name in ("system", "backend", "phase")), strict=True):
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

    def plans(self) -> Iterator[tuple[str, FigureEntry, pd.DataFrame]]:
        """(suite, figure, its rows): those of the catalogue, and one for each phase of a suite that it says no more of.

        A suite with a question and no figure is answered by a table.
        """
        for suite in self.catalogue.suites:
            rows = self.table[[suite.name in names for names in self.table["suites"]]]
            phases = dict.fromkeys(rows["phase"])
            for entry in suite.figures:
                if entry.phase in phases:
                    yield suite.name, entry, rows[rows["phase"] == entry.phase]
            drawn = {entry.phase for entry in suite.figures}
            if suite.figures or not suite.question:
                yield from self._defaults(suite.name, rows, [phase for phase in phases if phase not in drawn])
        others = self.table[[not names for names in self.table["suites"]]]
        yield from self._defaults("", others, dict.fromkeys(others["phase"]))

    def _defaults(
        self, suite: str, rows: pd.DataFrame, phases: Iterable[str]
    ) -> Iterator[tuple[str, FigureEntry, pd.DataFrame]]:
        labels = dict(self.catalogue.phases)
        for phase in phases:
            own = rows[rows["phase"] == phase]
            label = labels.get(phase, phase)
            title = f"{suite}: {label.lower()}" if suite else label
            entry = FigureEntry(phase, title, x=_widest_axis(own), y="latency_ms", y_log=True, forms=True)
            yield suite, entry, own

    def drawn(self, suite: str, entry: FigureEntry, rows: pd.DataFrame) -> Iterator[Figure]:
        """The figures of one entry, one for each value of what splits it."""
        if entry.x not in rows or entry.y not in rows:
            return
        rows = rows[pd.to_numeric(rows[entry.x], errors="coerce").notna()]
        if rows.empty:
            return
        rows = rows.sort_values(entry.x, kind="stable")
        for panel, titled in self._panels(rows, entry):
            yield from _Panel(self, suite, titled, panel).figures()

    def _panels(self, rows: pd.DataFrame, entry: FigureEntry) -> Iterator[tuple[pd.DataFrame, FigureEntry]]:
        """The rows of each figure of an entry, with the entry under the figure's own title."""
        split = [name for name in entry.split if name in rows]
        if not split:
            yield rows, entry
            return
        groups = dict(iter(rows.groupby(split, sort=False, dropna=False)))
        for key in sorted(groups, key=lambda key: [_sortable(self.order.get(value, value)) for value in key]):
            parts = [self.said(name, value) for name, value in zip(split, key, strict=True)]
            yield groups[key], replace(entry, title=f"{entry.title}: {', '.join(reversed(parts))}")

    def said(self, column: str, value: Any) -> str:
        """A setting in the words of a legend or caption; "" for one that was not set."""
        if value is None or pd.isna(value) or value == "":
            return "device not recorded" if column == "device" else ""
        if column == "system":
            return self.catalogue.system_label(value)
        if column == "backend":
            return self.catalogue.backend_label(value)
        if column in ("device", "device_id", "commit"):
            return {"device": value, "device_id": f"GPU {value}", "commit": f"commit {value[:8]}"}[column]
        if column == "timing":
            return _TIMINGS.get(value, f"timing {value}")
        return self.catalogue.axis(column).phrase.replace("{}", str(value))


@dataclass(frozen=True)
class _Panel:
    """Rows of one figure, in order of x, and what its entry says of it."""

    drawing: _Drawing
    suite: str
    entry: FigureEntry
    rows: pd.DataFrame

    def figures(self) -> Iterator[Figure]:
        """The figure and, where it is asked for and both forms are there, that of primal over dual."""
        entry, catalogue = self.entry, self.drawing.catalogue
        lines = self._lines()
        floors = self._floors() if entry.floor else []
        parts = [str(self.rows[name].iloc[0]) for name in entry.split if name in self.rows]
        figure = Figure(
            id="-".join(filter(None, [self.suite or "other", entry.phase, *parts])),
            suite=self.suite,
            title=entry.title,
            source=entry.source,
            caption=self._caption(lines + floors),
            x=entry.x,
            y=entry.y,
            x_title=_x_title(entry, catalogue),
            y_label=catalogue.metric(entry.y).label,
            y_title=axis_title(catalogue.metric(entry.y)),
            y_log=entry.y_log or _spans_wide(self._primary_values(lines)),
            best=entry.best,
            lines=lines + floors,
            headline=bool(entry.primary),
            claims=entry.claims,
        )
        yield figure
        # The paper's figures compare models; forms are compared where they are the suite's question.
        if entry.forms and (pairs := self._form_pairs()):
            yield replace(
                figure,
                id=f"{figure.id}-ratio",
                title=f"Primal over dual: {entry.title[:1].lower()}{entry.title[1:]}",
                y_title=f"{catalogue.metric(entry.y).label} of primal ÷ dual",
                y_log=False,
                caption=self._caption(lines),
                lines=pairs,
            )

    def _identity(self) -> list[str]:
        """The columns that set two lines apart; how a case is timed only where one x has several."""
        settings = [name for name in SETTING_COLUMNS if name != "timing"]
        columns = ["system", "backend", "size", "batch", "context", *settings, *option_columns(self.rows)]
        columns = [name for name in (*columns, *MACHINE_COLUMNS) if name != self.entry.x]
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

    def _lines(self) -> list[Line]:
        columns = self._identity()
        groups = self._grouped(self.rows, columns)
        telling = self._telling(columns)
        own_looks = self._own_looks()
        primary = self._primary(groups)
        lines: list[Line] = []
        for key in sorted(groups, key=lambda key: self._rank(key, columns)):
            values = dict(zip(columns, key, strict=True))
            pair = (values["system"], values["backend"])
            look = own_looks.get(values[self._told_by_look()]) or self.drawing.looks[pair]
            line = self._line(values, telling, groups[key], look)
            lines.append(_set_apart(replace(line, primary=pair in primary), lines))
        return lines

    def _primary(self, groups: Iterable[tuple[Any, ...]]) -> set[tuple[str, str]]:
        """The systems and backends that answer the figure's question; all where none of these is there."""
        pairs = {(key[0], key[1]) for key in groups}
        named = {(system, backend) for system, backend in pairs if f"{system}/{backend}" in self.entry.primary}
        return named or pairs

    def _primary_values(self, lines: list[Line]) -> pd.Series:
        return self.rows.loc[[row for line in lines if line.primary for row in line.rows], self.entry.y].dropna()

    def _told_by_look(self) -> str:
        """The column that colour and marker say.

        It is the system; where each system has figures of its own, the state's precision or, if that is the same, the
        backend.
        """
        rows = self.rows
        if "system" not in self.entry.split or rows["backend"].nunique() == 1:
            return "system"
        return "state_dtype" if rows["state_dtype"].nunique() > 1 else "backend"

    def _own_looks(self) -> dict[str, Look]:
        """The look of each value of what the look says, where that is not the system."""
        column = self._told_by_look()
        if column == "system":
            return {}
        found = sorted(self.rows[column].unique(), key=lambda value: (self.drawing.backends.get(value, 0), value))
        return {value: Look(n % TONES, MARKERS[n % len(MARKERS)]) for n, value in enumerate(found)}

    def _line(self, values: dict[str, Any], telling: list[str], rows: list[int], look: Look) -> Line:
        system, backend = values["system"], values["backend"]
        label = self.drawing.catalogue.system_label(system)
        parts = [said for column in telling if (said := self.drawing.said(column, values[column]))]
        by_system = self._told_by_look() == "system"
        return Line(
            name=" · ".join([label, self.drawing.catalogue.backend_label(backend), *parts]),
            short=label if by_system else self.drawing.said(self._told_by_look(), values[self._told_by_look()]),
            system=system,
            backend=backend,
            tone=look.tone,
            marker=look.marker,
            dash=look.dash,
            hollow=look.hollow,
            rows=rows,
        )

    def _telling(self, columns: list[str]) -> list[str]:
        """Columns worth saying: what differs in the figure or, of what only some systems have, within one of them."""
        rows = self.rows
        own = {"state_dtype", *option_columns(rows)}
        by_system = rows.groupby("system", sort=False)
        return [
            column
            for column in columns
            if column not in ("system", "backend")
            and (by_system[column].nunique(dropna=False).max() if column in own else rows[column].nunique()) > 1
        ]

    def _rank(self, key: tuple[Any, ...], columns: list[str]) -> tuple:
        """Systems in their order, then backends, then numbers before words."""
        values = dict(zip(columns, key, strict=True))
        own = (self.drawing.order[values["system"]], self.drawing.backends[values["backend"]])
        return own, [_sortable(value) for value in key[2:]]

    def _floors(self) -> list[Line]:
        """One line of `floor_ms` for each form: that of the state precision with the most values of x."""
        rows = self.rows
        if FLOOR not in rows or rows[FLOOR].isna().all():
            return []
        known = self._with_defaults()[rows[FLOOR].notna()]
        # Backends that do the same work share its floor, and so do the runs of it.
        shared = ("backend", "timing", "l2", "form", *MACHINE_COLUMNS)
        columns = [*(name for name in self._identity() if name not in shared), "form"]
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
        rows = self.rows.assign(form=_forms(self.rows))
        for name in option_columns(rows):
            default = self.drawing.catalogue.axis(name).default
            if default is not None:
                rows[name] = rows[name].astype(object).where(rows[name].notna(), default)
        return rows

    def _floor(self, values: dict[str, Any], rows: list[int], telling: list[str], dash: str) -> Line:
        parts = [said for name in telling if (said := self.drawing.said(name, values[name]))]
        name = " · ".join(["Floor", *parts])
        return Line(name, "floor", values["system"], "", 0, MARKERS[0], dash, False, rows, y=FLOOR)

    def _form_pairs(self) -> list[Line]:
        """Lines of primal over dual, for rows that are alike in all but the form."""
        rows, x = self.rows, self.entry.x
        forms = _forms(rows)
        if set(forms) < {"dual", "primal"}:
            return []
        alike = self._with_defaults()
        alike["backend"] = alike["backend"].str.removesuffix("-dual").str.removesuffix("-primal")
        columns = [column for column in self._identity() if column not in ("form", "timing")]
        primal, dual = (self._grouped(alike[forms == form], columns) for form in ("primal", "dual"))
        telling = self._telling(columns)
        own_looks = self._own_looks() if self._told_by_look() == "state_dtype" else {}
        lines: list[Line] = []
        for key in sorted(primal.keys() & dual.keys(), key=lambda key: [_sortable(value) for value in key]):
            values = dict(zip(columns, key, strict=True))
            at_x = dict(zip(rows.loc[dual[key], x], dual[key], strict=True))
            places = zip(primal[key], rows.loc[primal[key], x], strict=True)
            pairs = [(row, at_x[at]) for row, at in places if at in at_x]
            if pairs:
                look = own_looks.get(values["state_dtype"]) or self.drawing.systems[values["system"]]
                line = self._line(values, telling, [row for row, _ in pairs], look)
                line = replace(line, base_rows=[base for _, base in pairs])
                lines.append(_set_apart(line, lines))
        return lines

    def _caption(self, lines: list[Line]) -> str:
        """One sentence: what was held fixed, and what points and bars are."""
        rows, said = self.rows, self.drawing.said
        columns = ["batch", "context", "size", "dtype", "timing", "l2", *option_columns(rows)]
        unsaid = {self.entry.x, "part", "scope"}
        unsaid |= {"form"} if _forms(rows).nunique() > 1 else set()
        unsaid |= {"l2"} if set(rows["l2"]) == {"warm"} else set()
        fixed = [self._held(column, rows[column]) for column in columns if column not in unsaid]
        devices = " and ".join(said("device", device) for device in rows["device"].unique())
        sentence = ", ".join([*filter(None, fixed), f"on {devices}"])
        return "; ".join([sentence[0].upper() + sentence[1:], *self._remarks(lines)]) + "."

    def _remarks(self, lines: list[Line]) -> Iterator[str]:
        rows = self.rows
        measured = rows[(rows["status"] == "ok") & (rows["samples"] > 0)]
        if len(measured):
            yield _points_words(measured)
        if self.entry.best:
            yield "rings mark the best batch of each line that turns within the batches tried"
        if any(line.y for line in lines):
            yield (
                "the floor is the longer of the least bytes at a copy's bandwidth and the FLOPs at the rate of a large "
                "product, both measured in the process of the case"
            )
        if any(measured[name].nunique() > 1 for name in MACHINE_COLUMNS):
            yield _ALIKE_MACHINES
        if NOTES in rows and (noted := (rows["status"].eq("ok") & rows[NOTES].fillna("").ne("")).sum()):
            yield f"the table has notes on {noted} of the points"
        if any(rows.loc[line.rows, "status"].eq("ok").nunique() > 1 for line in lines):
            yield "crosses below mark cases without a result"

    def _held(self, column: str, values: pd.Series) -> str:
        """One value, or all of them where the lines differ (their names then say which is whose)."""
        found = [said for value in values.dropna().unique() if (said := self.drawing.said(column, value))]
        if len(found) <= 3:
            return " or ".join(found)
        return f"{len(found)} values of {column.replace('_', '-')}"


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


def _sortable(value: Any) -> tuple[int, float, str]:
    """Numbers before words."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _spans_wide(values: pd.Series) -> bool:
    """On a linear axis, would the lines of the fastest lie on each other at its foot?"""
    return len(values) > 0 and bool(values.max() > WIDE_RANGE * values.min())


def _x_title(entry: FigureEntry, catalogue: Catalogue) -> str:
    if (entry.x, entry.phase) == ("context", "request"):
        return "Prompt length (tokens)"
    return catalogue.axis(entry.x).label


def _widest_axis(rows: pd.DataFrame) -> str:
    """The axis with the most values, for a phase of a suite that says no figure of it."""
    axes = ["context", "batch", *(name for name in option_columns(rows) if pd.api.types.is_numeric_dtype(rows[name]))]
    return max(axes, key=lambda axis: rows[axis].nunique())


def _points_words(measured: pd.DataFrame) -> str:
    """What points and bars are."""
    samples, processes = measured["samples"], measured["processes"]
    said = f"medians of {_ends(samples)} samples with their 95% intervals"
    said += " within a process" if processes.max() > 1 else ""
    said += f" (below {FEWEST} samples their range)" if samples.min() < FEWEST else ""
    if processes.max() > 1:
        said += f", of {_ends(processes)} processes a point"
    spread = measured["process_spread"].dropna()
    if len(spread):
        said += f", which differ by {spread.median():.1%} in the median, {spread.max():.1%} at most"
    return said


def _ends(values: pd.Series) -> str:
    return "–".join(map(str, dict.fromkeys((values.min(), values.max()))))


def _forms(rows: pd.DataFrame) -> pd.Series:
    """The form of each row: its option, or else what its backend is called after."""
    called = rows["backend"].str.extract(r"-(dual|primal)$", expand=False)
    return rows["form"].where(rows["form"].notna(), called) if "form" in rows else called
