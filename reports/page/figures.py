"""Which figures does a page have, and what was held fixed in each?

A figure refers to the rows of `stats.frame` by number; the page draws it (`figures.js`), so that one
copy of the numbers serves figures, tables and downloads.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import pandas as pd

from harness.measure.interval import FEWEST
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue, FigureEntry, MetricEntry, PaperClaim
from harness.schema.reason import counted, span
from reports.page.lines import FigurePanel, Line, Looks, forms_of, sortable
from reports.stats import (
    AMOUNTS,
    CASE_COLUMNS,
    MACHINE_COLUMNS,
    NOTES,
    SETTING_COLUMNS,
    option_columns,
    suites_of_cases,
)
from reports.words import counts_of_missing, left_out, share_of

WIDE_RANGE = 30  # largest over smallest value of a figure, from which its first choice of axis is logarithmic

LATENCIES, RATES = ("latency_ms", "us_per_token"), ("tokens_per_s", "tflops", "gbs")  # whose bars are a latency's


@dataclass(frozen=True)
class Figure:
    """What the page needs to draw one figure; `x` and `y` are columns, `y_log` its first choice of axis.

    id: what a link to it says. caption: the settings of all lines; remarks: sentences on how they were measured.
    """

    id: str
    suite: str
    title: str
    source: str
    caption: str
    remarks: list[str]
    x: str
    y: str
    x_title: str
    y_label: str
    y_title: str
    y_log: bool
    best: bool
    lines: list[Line]
    headline: bool = False  # it answers the question of its run
    claims: tuple[PaperClaim, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def figures(table: pd.DataFrame, catalogue: Catalogue, missing: Sequence[Case] = ()) -> list[Figure]:
    """The figures of the suites in `table` (of `stats.frame`), those with primary lines first.

    missing: the planned cases without a record, of which captions tell.
    """
    drawing = _Drawing(_with_place(table), catalogue, missing)
    plans = sorted(drawing.plans(), key=lambda plan: not plan[1].primary)
    return _apart([figure for plan in plans for figure in drawing.drawn(*plan)])


def undrawn(table: pd.DataFrame, catalogue: Catalogue) -> list[str]:
    """A sentence for each figure that is left out although its cases have results: they lack its metric."""
    return [
        f"{entry.title} is not drawn: no record has {catalogue.metric(entry.y).label}."
        for _, entry, rows in _Drawing(table, catalogue).plans()
        if entry.y not in rows and rows["status"].eq("ok").any()
    ]


def _apart(drawn: list[Figure]) -> list[Figure]:
    """The figures, those of one id numbered."""
    seen: dict[str, int] = {}
    for number, figure in enumerate(drawn):
        seen[figure.id] = seen.get(figure.id, 0) + 1
        if seen[figure.id] > 1:
            drawn[number] = replace(figure, id=f"{figure.id}-{seen[figure.id]}")
    return drawn


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

    def __init__(self, table: pd.DataFrame, catalogue: Catalogue, missing: Sequence[Case] = ()) -> None:
        self.table, self.catalogue, self.missing = table, catalogue, missing
        self.looks = Looks(table, catalogue)

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
            held = {name: panel[name].iloc[0] for name in entry.split if name in panel}
            missing = [case for case in self._missing(suite, entry.phase) if self._is_in(case, held)]
            yield from _Drawn(FigurePanel(self.looks, titled, panel), suite, missing).figures()

    def _missing(self, suite: str, phase: str) -> Iterator[Case]:
        """The planned cases of a suite's phase that have no record."""
        suites = suites_of_cases(self.catalogue)
        return (case for case in self.missing if case.phase == phase and suite in suites.get(case.key, ()))

    def _is_in(self, case: Case, held: Mapping[str, Any]) -> bool:
        """Whether a case has the values that a panel holds; NA is that of a case without the option."""

        def own(name: str) -> Any:
            is_option = name not in (*CASE_COLUMNS, *SETTING_COLUMNS)
            return case.option(name, self.catalogue.axis(name).default) if is_option else getattr(case, name)

        return all(own(name) is None if pd.isna(value) else own(name) == value for name, value in held.items())

    def _panels(self, rows: pd.DataFrame, entry: FigureEntry) -> Iterator[tuple[pd.DataFrame, FigureEntry]]:
        """The rows of each figure of an entry, with the entry under the figure's own title."""
        split = [name for name in entry.split if name in rows]
        if not split:
            yield rows, entry
            return
        groups = dict(iter(rows.groupby(split, sort=False, dropna=False)))
        for key in sorted(groups, key=lambda key: [sortable(self.looks.order.get(value, value)) for value in key]):
            parts = [self.looks.said(name, value) for name, value in zip(split, key, strict=True)]
            said = ", ".join(filter(None, reversed(parts)))
            yield groups[key], replace(entry, title=f"{entry.title}: {said}" if said else entry.title)


@dataclass(frozen=True)
class _Drawn:
    """The figures of a panel: its title, axes and caption."""

    panel: FigurePanel
    suite: str
    missing: Sequence[Case] = ()

    def figures(self) -> Iterator[Figure]:
        """The figure and, where it is asked for and both forms are there, that of primal over dual."""
        entry, rows, catalogue = self.panel.entry, self.panel.rows, self.panel.looks.catalogue
        lines = self.panel.lines()
        floors = self.panel.floors() if entry.floor else []
        parts = [str(value) for name in entry.split if name in rows and pd.notna(value := rows[name].iloc[0])]
        figure = Figure(
            id="-".join([*_named(self.suite or "other", entry.phase), *filter(None, parts)]),
            suite=self.suite,
            title=entry.title,
            source=entry.source,
            caption=self._caption(),
            remarks=self._remarks(lines + floors),
            x=entry.x,
            y=entry.y,
            x_title=_x_title(entry, catalogue),
            y_label=catalogue.metric(entry.y).label,
            y_title=axis_title(catalogue.metric(entry.y)),
            y_log=entry.y_log or _spans_wide(_primary_values(rows, lines, entry.y)),
            best=entry.best,
            lines=lines + floors,
            headline=bool(entry.primary),
            claims=entry.claims,
        )
        yield figure
        # The paper's figures compare models; forms are compared where they are the suite's question.
        if entry.forms and (pairs := self.panel.form_pairs()):
            yield replace(
                figure,
                id=f"{figure.id}-ratio",
                title=f"Primal over dual, {entry.title[:1].lower()}{entry.title[1:]}",
                y_title=f"{catalogue.metric(entry.y).label} of primal ÷ dual",
                y_log=False,
                remarks=self._remarks(pairs),
                lines=pairs,
            )

    def _caption(self) -> str:
        """The settings that all lines share."""
        rows = self.panel.rows
        columns = ["device", "batch", "context", "size", "dtype", "l2", *option_columns(rows)]
        unsaid = {self.panel.entry.x, "part", "scope", "form" if forms_of(rows).nunique() > 1 else ""}
        unsaid |= {"l2"} if set(rows["l2"]) == {"warm"} else set()
        unsaid |= {"device"} if self.panel.looks.devices == 1 else set()
        return ", ".join(filter(None, (self._held(name) for name in columns if name not in unsaid)))

    def _held(self, column: str) -> str:
        """The value of a column in words; "" where it has several or none."""
        values = self.panel.rows[column].dropna().unique()
        return self.panel.looks.said(column, values[0], self.panel.entry.phase) if len(values) == 1 else ""

    def _remarks(self, lines: list[Line]) -> list[str]:
        return [f"{said[:1].upper()}{said[1:]}." for said in self._said(lines)]

    def _said(self, lines: list[Line]) -> Iterator[str]:
        shown = self._at_first(lines)
        points = [point for line in shown for point in _points(line)]
        rows = self.panel.rows.loc[sorted({row for point in points for row in point})]
        measured = rows[(rows["status"] == "ok") & (rows["samples"] > 0)]
        is_amount = self.panel.entry.y in AMOUNTS
        if len(measured) and (ways := [*filter(None, map(self._timing, rows["timing"].unique()))]):
            yield _either(ways)
        if len(measured) and not is_amount:
            yield _points_words(measured, self.panel.entry.y, any(line.base_rows for line in lines))
        if any(line.y for line in lines):
            yield (
                "the floor is the longer of the least bytes at the bandwidth and the FLOPs at the product rate, each "
                "the highest that a process of the run measured on a GPU of this model or a profiled kernel reached"
            )
            if rows["state_dtype"].nunique() > 1:
                yield "the floor is of one state precision: a smaller state has a lower one"
        several = {name for name in MACHINE_COLUMNS if measured[name].nunique() > 1}
        apart = several & {*self.panel.identity()}
        if apart:
            places = "models of GPU" if "device_id" in several - apart else "machines"
            yield f"lines join no points of different {places} or commits"
        if "device_id" in several - apart and measured["device"].nunique() == 1:
            yield f"the points are from {measured['device_id'].nunique()} GPUs of one model"
        throttled, timed = {*measured.index[measured["throttled"] > 0]}, {*measured.index}
        devices, ratios = rows["device_id"], [each for each in points if len(each) > 1 and timed.issuperset(each)]
        if mixed := sum(devices[list(point)].nunique() > 1 for point in ratios):
            yield f"{share_of(mixed, len(ratios), 'ratio')} {'divides' if mixed == 1 else 'divide'} times of two GPUs"
        if states := self._states():
            yield states
        if not is_amount and (count := sum(not throttled.isdisjoint(point) for point in points)):
            results = sum(timed.issuperset(point) for point in points)
            at = share_of(count, results, "point")
            yield f"at {at} with a result the GPU was throttled, at its power cap or beyond"
        if self.missing:
            whose = counts_of_missing(self.missing, self.panel.rows, self.panel.looks.catalogue)
            said = ", ".join(f"{count} of {name}" for name, count in whose.values())
            yield f"{counted(len(self.missing), 'case')} without a record yet: {said}"
        yield from left_out(self.panel.rows, self.panel.looks.catalogue)
        if NOTES in rows:
            has_result, noted = (
                {*rows.index[which]} for which in (rows["status"] == "ok", rows[NOTES].fillna("") != "")
            )
            drawn = {point for point in points if has_result.issuperset(point)}
            if count := sum(not noted.isdisjoint(point) for point in drawn):
                noted_share = share_of(count, len(drawn), "point")
                yield f"there are notes on {noted_share} with a result (column Notes of Numbers)"

    def _timing(self, way: str) -> str:
        return self.panel.looks.said("timing", way, self.panel.entry.phase)

    def _at_first(self, lines: list[Line]) -> list[Line]:
        """The lines that the page shows when it opens, without floors."""
        drawn = [line for line in lines if not line.y]
        return [line for line in drawn if line.primary and self._has_result(line)] or drawn

    def _has_result(self, line: Line) -> bool:
        rows = self.panel.rows.loc[line.rows]
        return bool(((rows["status"] == "ok") & rows[self.panel.entry.y].notna()).any())

    def _states(self) -> str:
        """Whose states are kept in which precision, where systems differ and the names of lines do not say it.

        The lines of a system with several say it.
        """
        rows = self.panel.rows[self.panel.rows["state_dtype"] != ""]
        own = rows.groupby("system", sort=False)["state_dtype"].unique()
        of: dict[str, list[str]] = {}
        for system, states in own.items():
            if len(states) == 1:
                of.setdefault(states[0], []).append(self.panel.looks.catalogue.system_label(str(system)))
        if rows["state_dtype"].nunique() < 2 or not of:
            return ""
        return "states are kept in " + ", ".join(f"{state} ({', '.join(whose)})" for state, whose in of.items())


def _points(line: Line) -> list[tuple[int, ...]]:
    """The rows of each point of a line: its own and, of a ratio, what it is divided by."""
    return list(zip(line.rows, line.base_rows, strict=True)) if line.base_rows else [(row,) for row in line.rows]


def _either(found: list[str]) -> str:
    """`timed eagerly, in graphs or by the engine`: a first word that all share is said once."""
    first, *others = found or [""]
    shared = {each.partition(" ")[0] for each in found}
    if len(shared) == 1 and all(" " in each for each in found):
        others = [each.partition(" ")[2] for each in others]
    return " or ".join(filter(None, [", ".join([first, *others[:-1]]), *others[-1:]]))


def _primary_values(rows: pd.DataFrame, lines: list[Line], y: str) -> pd.Series:
    return rows.loc[[row for line in lines if line.primary for row in line.rows], y].dropna()


def _spans_wide(values: pd.Series) -> bool:
    """On a linear axis, would the lines of the fastest lie on each other at its foot?"""
    return len(values) > 0 and bool(values.max() > WIDE_RANGE * values.min())


def _named(suite: str, phase: str) -> list[str]:
    """The phase is said once."""
    return [suite] if suite.endswith(f"-{phase}") else [suite, phase]


def days(started: Iterable[str]) -> str:
    """The first and last day (UTC) of these times; "" where none says one."""
    found = sorted({day for text in started if (day := _day(text))})
    return span(found[0], found[-1]) if found else ""


def _day(text: str) -> str:
    try:
        return datetime.fromisoformat(text).date().isoformat()
    except ValueError:
        return ""


def _x_title(entry: FigureEntry, catalogue: Catalogue) -> str:
    if (entry.x, entry.phase) == ("context", "request"):
        return "Prompt length (tokens)"
    return catalogue.axis(entry.x).label


def _widest_axis(rows: pd.DataFrame) -> str:
    """The axis with the most values, for a phase of a suite that says no figure of it."""
    axes = ["context", "batch", *(name for name in option_columns(rows) if pd.api.types.is_numeric_dtype(rows[name]))]
    return max(axes, key=lambda axis: rows[axis].nunique())


def own_ends(y: str) -> tuple[str, str]:
    """The columns of a metric's own interval, where a record has one."""
    return f"{y}_low", f"{y}_high"


def _points_words(measured: pd.DataFrame, y: str, are_ratios: bool) -> str:
    """What points and bars are."""
    samples, processes = measured["samples"], measured["processes"]
    repeated = processes.max() > 1
    said, is_speed = f"medians of {ends(samples)} samples", y in LATENCIES + RATES
    said = f"ratios of {said}" if are_ratios else said
    if not is_speed and not any(name in measured for name in own_ends(y)):
        return said
    said += " with the widest ratios that their 95% intervals" if are_ratios else " with their 95% intervals"
    said += " over processes" if repeated and is_speed else " within one process"
    said += " allow" if are_ratios else ""
    said += f" (below {FEWEST} samples their range)" if samples.min() < FEWEST else ""
    if repeated:
        said += f", of {ends(processes)} processes a point"
    spread = measured["process_spread"].dropna()
    if len(spread):
        said += f", which differ by {spread.median():.1%} in the median, {spread.max():.1%} at most"
    return said


def ends(values: pd.Series) -> str:
    """The least and the largest value, `2–16`."""
    return span(values.min(), values.max(), "–")
