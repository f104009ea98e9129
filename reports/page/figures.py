"""The figures of a page: the lines, axes, caption and remarks of each figure.

A figure refers to rows of `stats.frame` by number, so that figures, tables and downloads share one copy of the values.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pandas as pd

from harness.measure.interval import FEWEST
from harness.quality import UNSTEADY_TIMES
from harness.schema.catalogue import Catalogue, FigureEntry, MetricEntry
from harness.schema.reason import span
from reports.page.lines import FigurePanel, Line, Looks, forms_of, sortable
from reports.stats import AMOUNTS, option_columns
from reports.words import share_of

WIDE_RANGE = 30  # largest over smallest value above which a figure opens with a logarithmic axis

# Metrics whose intervals follow from that of the latency.
LATENCIES, RATES = ("latency_ms", "us_per_token"), ("tokens_per_s", "tflops", "gbs")


@dataclass(frozen=True, kw_only=True)
class Figure(FigureEntry):
    """A figure of the catalogue with its lines.

    x, y: columns of the table of `reports.stats.frame`.
    id: the figure's name in URLs. caption: the settings that all lines share.
    remarks: sentences on how the points were measured.
    y_title: the metric's label and unit. y_log: whether the y axis is logarithmic when the page opens.
    """

    id: str
    suite: str
    caption: str
    remarks: list[str]
    x_title: str
    y_title: str
    lines: list[Line]


def figures(table: pd.DataFrame, catalogue: Catalogue) -> list[Figure]:
    """Return the figures for a `stats.frame` table; figures with `FigureEntry.primary` come first."""
    looks, table = Looks(table, catalogue), _with_device(table)
    plans = sorted(_plans(table, catalogue), key=lambda plan: not plan[1].primary)
    return _numbered([figure for plan in plans for figure in _drawn(looks, *plan)])


def _numbered(drawn: list[Figure]) -> list[Figure]:
    seen: dict[str, int] = {}
    for number, figure in enumerate(drawn):
        seen[figure.id] = seen.get(figure.id, 0) + 1
        if seen[figure.id] > 1:
            drawn[number] = replace(figure, id=f"{figure.id}-{seen[figure.id]}")
    return drawn


def axis_title(entry: MetricEntry) -> str:
    return f"{entry.label} ({entry.unit})" if entry.unit else entry.label


def _with_device(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in the device that failed cases lack, if the table has just one."""
    known = [device for device in table["device"].unique() if device]
    unknown = (table["device"] == "") & (table["status"] != "ok")
    return table.assign(device=table["device"].where(~unknown, known[0])) if len(known) == 1 else table


def _plans(table: pd.DataFrame, catalogue: Catalogue) -> Iterator[tuple[str, FigureEntry, pd.DataFrame]]:
    for suite in catalogue.suites:
        rows = table[[suite.name in names for names in table["suites"]]]
        phases = dict.fromkeys(rows["phase"])
        for entry in suite.figures:
            if entry.phase in phases:
                yield suite.name, entry, rows[rows["phase"] == entry.phase]
        drawn = {entry.phase for entry in suite.figures}
        if suite.figures or not suite.question:  # a suite with a question but no figures has a table
            yield from _default_plans(suite.name, rows, [phase for phase in phases if phase not in drawn], catalogue)
    others = table[[not names for names in table["suites"]]]
    yield from _default_plans("", others, dict.fromkeys(others["phase"]), catalogue)


def _default_plans(
    suite: str, rows: pd.DataFrame, phases: Iterable[str], catalogue: Catalogue
) -> Iterator[tuple[str, FigureEntry, pd.DataFrame]]:
    labels = dict(catalogue.phases)
    for phase in phases:
        own = rows[rows["phase"] == phase]
        label = labels.get(phase, phase)
        title = f"{suite}: {label.lower()}" if suite else label
        yield suite, FigureEntry(phase, title, x=_widest_axis(own), y="latency_ms", y_log=True, forms=True), own


def _drawn(looks: Looks, suite: str, entry: FigureEntry, rows: pd.DataFrame) -> Iterator[Figure]:
    if entry.x not in rows or entry.y not in rows:
        return
    rows = rows[pd.to_numeric(rows[entry.x], errors="coerce").notna()].sort_values(entry.x, kind="stable")
    split = [name for name in entry.split if name in rows]
    groups = dict(iter(rows.groupby(split, sort=False, dropna=False))) if split else {(): rows}
    for key in sorted(groups, key=lambda key: [sortable(looks.order.get(value, value)) for value in key]):
        own = groups[key]
        if len(own):
            words = [looks.words(name, value) for name, value in zip(split, key, strict=True)]
            title = ", ".join(filter(None, reversed(words)))
            titled = replace(entry, title=f"{entry.title}: {title}" if title else entry.title)
            yield from _Panel(looks, titled, own, suite).figures()


@dataclass(frozen=True)
class _Panel(FigurePanel):
    """Builds a figure and, if its entry sets `forms`, another figure of primal / dual ratios."""

    suite: str

    def figures(self) -> Iterator[Figure]:
        entry, rows, catalogue, lines = self.entry, self.rows, self.looks.catalogue, self.lines()
        parts = [str(value) for name in entry.split if name in rows and pd.notna(value := rows[name].iloc[0])]
        named = [self.suite] if self.suite.endswith(f"-{entry.phase}") else [self.suite or "other", entry.phase]
        is_prompt = (entry.x, entry.phase) == ("context", "request")
        figure = Figure(
            **vars(replace(entry, y_log=entry.y_log or _is_wide(rows, lines, entry.y))),
            id="-".join([*named, *filter(None, parts)]),
            suite=self.suite,
            caption=self._caption(),
            remarks=self._remarks(lines),
            x_title="Prompt length (tokens)" if is_prompt else catalogue.axis(entry.x).label,
            y_title=axis_title(catalogue.metric(entry.y)),
            lines=lines + (self.bounds() if entry.lower_bound else []),
        )
        yield figure
        if entry.forms and (pairs := self.form_pairs()):
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
        rows = self.rows
        columns = ["device", "batch", "context", "size", "dtype", "l2", *option_columns(rows)]
        omitted = {self.entry.x, self.entry.along, "part", "scope", "form" if forms_of(rows).nunique() > 1 else ""}
        omitted |= {"l2"} if set(rows["l2"]) == {"warm"} else set()
        omitted |= {"device"} if self.looks.devices == 1 else set()
        return ", ".join(filter(None, (self._common(name) for name in columns if name not in omitted)))

    def _common(self, column: str) -> str:
        values = self.rows[column].dropna().unique()
        return self.looks.words(column, values[0], self.entry.phase) if len(values) == 1 else ""

    def _remarks(self, lines: list[Line]) -> list[str]:
        return [f"{text[:1].upper()}{text[1:]}." for text in self._details(lines) if text]

    def _details(self, lines: list[Line]) -> Iterator[str]:
        points = [point for line in self._shown_first(lines) for point in _points(line)]
        rows = self.rows.loc[sorted({row for point in points for row in point})]
        measured = rows[(rows["status"] == "ok") & (rows["samples"] > 0)]
        if len(measured) and self.entry.y not in AMOUNTS:
            timings = measured["timing"].unique()
            yield " or ".join(self.looks.words("timing", timing, self.entry.phase) for timing in timings)
            yield _describe_points(measured, self.entry.y, any(line.base_rows for line in lines))
        yield self._state_precisions()
        timed, throttled = {*measured.index}, {*measured.index[measured["throttled"] > 0]}
        complete = [point for point in points if timed.issuperset(point)]
        mixed = sum(rows["device_id"][list(point)].nunique() > 1 for point in complete)
        if mixed:
            yield f"{share_of(mixed, len(complete), 'ratio')} {'divides' if mixed == 1 else 'divide'} times of two GPUs"
        commits = measured["commit"].replace("", None).nunique()
        if commits > 1:
            yield f"measured at {commits} commits"
        slowed = sum(not throttled.isdisjoint(point) for point in complete)
        if slowed and self.entry.y not in AMOUNTS:
            yield f"the GPU was power-capped or thermally throttled at {share_of(slowed, len(complete), 'point')}"

    def _shown_first(self, lines: list[Line]) -> list[Line]:
        """Return the lines visible when the page opens: primary lines with a result, else all lines."""
        rows, y = self.rows, self.entry.y
        found = {*rows.index[(rows["status"] == "ok") & rows[y].notna()]}
        return [line for line in lines if line.primary and not found.isdisjoint(line.rows)] or lines

    def _state_precisions(self) -> str:
        rows = self.rows[self.rows["state_dtype"] != ""]
        own = rows.groupby("system", sort=False)["state_dtype"].unique()
        systems: dict[str, list[str]] = {}
        for system, states in own.items():
            if len(states) == 1:
                systems.setdefault(states[0], []).append(self.looks.catalogue.system_label(str(system)))
        if rows["state_dtype"].nunique() < 2 or not systems:
            return ""
        return "state precision: " + ", ".join(f"{state} ({', '.join(names)})" for state, names in systems.items())


def _points(line: Line) -> list[tuple[int, ...]]:
    """Return the table rows of each point: (row,), or (numerator, denominator) for a ratio."""
    return list(zip(line.rows, line.base_rows, strict=True)) if line.base_rows else [(row,) for row in line.rows]


def _is_wide(rows: pd.DataFrame, lines: list[Line], y: str) -> bool:
    values = rows.loc[[row for line in lines if line.primary for row in line.rows], y].dropna()
    return len(values) > 0 and bool(values.max() > WIDE_RANGE * values.min())


def _widest_axis(rows: pd.DataFrame) -> str:
    axes = ["context", "batch", *(name for name in option_columns(rows) if pd.api.types.is_numeric_dtype(rows[name]))]
    return max(axes, key=lambda axis: rows[axis].nunique())


def interval_columns(y: str) -> tuple[str, str]:
    """Return the column names (low, high) for the interval of metric `y`; a table may lack these columns."""
    return f"{y}_low", f"{y}_high"


def _describe_points(measured: pd.DataFrame, y: str, are_ratios: bool) -> str:
    """Describe points and error bars in words; "" if y is no median. are_ratios: whether a point divides medians."""
    samples, processes = measured["samples"], measured["processes"]
    words = f"{'ratios of ' if are_ratios else ''}medians of {value_range(samples)} samples"
    if y not in LATENCIES + RATES and not any(name in measured for name in interval_columns(y)):
        return words if y in UNSTEADY_TIMES else ""  # percentiles, for example, are not medians of the samples
    bars = "95% intervals" if (samples / processes).max() >= FEWEST else "ranges"
    words += f", with {'the widest ratios of ' if are_ratios else ''}{bars} within one process"
    if processes.max() > 1:
        spread = measured["process_spread"]
        words += f", from {value_range(processes)} processes per point"
        words += f", which differ by {spread.median():.1%} in the median case and by at most {spread.max():.1%}"
    return words


def value_range(values: pd.Series) -> str:
    """Return the smallest and the largest value, such as `2–16`."""
    return span(values.min(), values.max(), "–")
