"""The ranking of a figure's lines: which lines are comparable, and which is best at each x."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import pandas as pd

from harness.quality import ANY_UNSTEADY, FEW_SAMPLES, LOADED
from harness.schema.catalogue import Catalogue, MetricEntry
from harness.schema.record import Record
from reports.compare.comparison import BETWEEN_RUNS
from reports.page.figures import LATENCIES, RATES, Figure, figures, interval_columns
from reports.page.lines import Line
from reports.stats import AMOUNTS, FLAGS, NOT_RUN, flags_in, option_columns
from reports.words import SEPARATOR, format_setting

EQUAL_WITHIN = 0.05  # values that differ by at most this share are equal
EQUAL, INDISTINGUISHABLE, UNRANKED = f"equal within {EQUAL_WITHIN:.0%}", "indistinguishable", "too uncertain to rank"
# {words for lines that share a rank: the preposition before the other line}. UNRANKED: a point has a `doubt`.
TIES = {EQUAL: "to", INDISTINGUISHABLE: "from", UNRANKED: "against"}
FLAG_DOUBT = 0.5  # the `doubt` of points with a flag in `_DOUBT_FLAGS`
_DOUBT_FLAGS = {FEW_SAMPLES, LOADED, *ANY_UNSTEADY}
_LATENCY = ("latency_ms", "latency_ms_low", "latency_ms_high")
_CASE_SETTINGS = ("device", "size", "batch", "context", "dtype", "l2")  # equal for all lines that are compared


@dataclass(frozen=True)
class Point:
    """A measured point and its interval [low, high], in the unit of the figure.

    doubt: relative difference up to which this point and another one are too uncertain to rank.
        On a GPU, it is 0 without a flag in `_DOUBT_FLAGS`; on a CPU, it is 0 only for `AMOUNTS`.
    """

    x: float
    value: float
    low: float
    high: float
    doubt: float = 0.0

    def is_equal(self, other: "Point", share: float = EQUAL_WITHIN) -> bool:
        return max(self.value, other.value) <= (1 + share) * min(self.value, other.value)

    def is_indistinguishable(self, other: "Point") -> bool:
        """Whether it is uncertain which point is better.

        With a `doubt`: the intervals overlap, or the values differ by at most the larger `doubt`.
        Without: the intervals overlap, and the values differ by more than `EQUAL_WITHIN`.
        """
        overlap = max(self.low, other.low) <= min(self.high, other.high)
        if doubt := max(self.doubt, other.doubt):
            return overlap or self.is_equal(other, doubt)
        return overlap and not self.is_equal(other)


@dataclass(frozen=True)
class Standing:
    """The ranking of the compared lines at one x, or by each line's highest value.

    ranks: (point, label of its line), the best first. tied: labels of the lines that share the first rank.
    tie: why these lines share the rank, a key of `TIES`; unused for a single line.
    """

    x: float
    ranks: list[tuple[Point, str]]
    tied: tuple[str, ...]
    tie: str


@dataclass(frozen=True)
class View:
    """A figure with its table and catalogue; selects and ranks the figure's lines."""

    table: pd.DataFrame
    catalogue: Catalogue
    figure: Figure
    on_cpu: bool = False  # whether no record is from a GPU

    @property
    def metric(self) -> MetricEntry:
        return self.catalogue.metric(self.figure.y)

    @property
    def lower_is_better(self) -> bool:
        return self.metric.better == "lower"

    @property
    def is_speed(self) -> bool:
        return self.figure.y in LATENCIES + RATES or self.metric.unit in ("ms", "µs")

    @property
    def is_parts(self) -> bool:
        """Whether the lines are parts of one computation, whose times add up."""
        return "part" in self.table and bool((self.rows(self.ranked)["part"].fillna("") != "").any())

    @cached_property
    def ranked(self) -> list[Line]:
        """Lines with `Line.primary`, and measured lines of systems not in `primary_systems`; no bounds or ratios."""
        drawn = [line for line in self.figure.lines if not line.y and not line.base_rows]
        named = self.figure.primary_systems
        return [line for line in drawn if line.primary or (line.system not in named and self.points(line))]

    @cached_property
    def comparable(self) -> list[Line]:
        """The ranked lines that may be compared with each other, because they agree in settings such as batch.

        Each measured line forms a candidate set: all ranked lines whose nonempty settings equal its own. The result is
        the set with the most measured lines or, among equals, the one with the most default settings.
        """
        own = {line.name: self._settings(line) for line in self.ranked}
        best: tuple[tuple[int, int], list[Line]] = (0, 0), []
        for line in reversed(self._measured(self.ranked)):
            wanted = own[line.name]
            lines = [each for each in self.ranked if own[each.name].items() <= wanted.items()]
            usual = sum(self.catalogue.axis(name).default == value for name, value in wanted.items())
            weight = len(self._measured(lines)), usual
            if weight > best[0]:
                best = weight, lines
        return best[1]

    @cached_property
    def compared(self) -> list[Line]:
        return self._measured(self.comparable)

    def _measured(self, lines: Iterable[Line]) -> list[Line]:
        return [line for line in lines if self.points(line)]

    @cached_property
    def _distinguishing(self) -> list[str]:
        """Columns of `table`, such as batch, that must be equal for two lines to be compared."""
        rows = self.rows(self.ranked)
        found = [name for name in _CASE_SETTINGS if rows[name].replace("", None).nunique() > 1]
        if rows["system"].nunique() > 1:
            own = rows.groupby(["system", "backend"], sort=False)[["state_dtype", *option_columns(rows)]]
            found += [name for name, most in own.nunique().max().items() if most > 1]
        return [name for name in found if name not in (self.figure.x, self.figure.along)]

    def _settings(self, line: Line) -> dict[str, Any]:
        values = self.table.loc[line.rows[0], self._distinguishing]
        return {name: value for name, value in values.items() if pd.notna(value) and value != ""}

    @cached_property
    def tried_x(self) -> list[float]:
        """Ascending values of x with a case that ran, successful or not, on any line of `comparable`."""
        rows = self.rows(self.comparable)
        return sorted(rows[self.figure.x][~rows["status"].isin(NOT_RUN)].unique())

    @cached_property
    def shared_settings(self) -> list[str]:
        """Settings, such as `batch 16`, that distinguish the compared lines from other lines of the figure."""
        values = dict(chain.from_iterable(self._settings(line).items() for line in self.compared))
        return [format_setting(self.catalogue.axis(name), value) for name, value in values.items()]

    def labels(self, lines: Sequence[Line], omitted: Collection[str] = ()) -> dict[str, str]:
        """Return {line name: the line's short name if unique among `lines`, else its name}.

        omitted: parts of names to leave out, such as `shared_settings`.
        """
        shorts = [line.short for line in lines]
        longs = [SEPARATOR.join(part for part in line.name.split(SEPARATOR) if part not in omitted) for line in lines]
        pairs = zip(lines, longs, strict=True)
        return {line.name: line.short if shorts.count(line.short) == 1 else long for line, long in pairs}

    @property
    def axis(self) -> str:
        words = self.catalogue.axis(self.figure.x).phrase.partition("{}")[0].strip()
        return words or self.figure.x.replace("_", " ")

    def at(self, x: str) -> str:
        """Return a value of x in words, such as `batch 16`."""
        return self.catalogue.axis(self.figure.x).phrase.replace("{}", x)

    def points(self, line: Line) -> list[Point]:
        return self._points[line.name]

    @cached_property
    def _points(self) -> dict[str, list[Point]]:
        return {line.name: list(self._read(line)) for line in self.figure.lines}

    def _read(self, line: Line) -> Iterator[Point]:
        x, y, scale = self.figure.x, self.figure.y, self.metric.scale
        columns = (x, y, *interval_columns(y), *_LATENCY, FLAGS, "status")
        read = [name for name in dict.fromkeys(columns) if name in self.table]
        for cells in self.table.loc[list(line.rows), read].to_dict("records"):
            value = cells[y]
            if cells["status"] == "ok" and pd.notna(value) and value > 0:
                low, high = (float(value) / scale * end for end in bar(cells, y))
                flags = _DOUBT_FLAGS.intersection(flags_in(cells.get(FLAGS), y))
                doubt = FLAG_DOUBT if flags else 0.0
                if self.on_cpu and y not in AMOUNTS:  # contention slows systems by very different factors
                    doubt = math.inf if LOADED in flags else max(doubt, BETWEEN_RUNS["cpu"])
                yield Point(float(cells[x]), float(value) / scale, low, high, doubt)

    @cached_property
    def started(self) -> dict[str, set[float]]:
        """{line name: the values of x at which the line has a case that is not "unstarted"}."""
        x = self.table[self.figure.x].where(self.table["status"] != "unstarted")
        return {line.name: set(x[line.rows].dropna()) for line in self.figure.lines}

    def may_lose(self, best: Line, x: float) -> bool:
        """Whether a line without a case at x, as in an unfinished run, is better than `best` at another x."""
        own = {point.x: point.value for point in self.points(best)}
        absent = [line for line in self.compared if x not in self.started[line.name]]
        pairs = [(own[each.x], each.value) for line in absent for each in self.points(line) if each.x in own]
        return any(ours != theirs and (theirs < ours) == self.lower_is_better for ours, theirs in pairs)

    def of_system(self, system: str) -> dict[float, Point]:
        """Return {x: point} of a system's compared lines; at a shared x, the last line's point."""
        return {point.x: point for line in self.compared if line.system == system for point in self.points(line)}

    def standing(self, x: float, ranks: Sequence[tuple[Point, str]]) -> Standing:
        """Return the ranking at `x`. ranks: (point, label of its line) pairs in any order."""
        ordered = sorted(ranks, key=lambda rank: rank[0].value if self.lower_is_better else -rank[0].value)
        best = ordered[0][0]
        tied = tuple(label for point, label in ranks if best.is_equal(point) or best.is_indistinguishable(point))
        close = [point for point, _ in ordered[1:] if best.is_indistinguishable(point)]
        uncertain = UNRANKED if any(point.doubt for point in (best, *close)) else INDISTINGUISHABLE
        tie = uncertain if close else EQUAL
        return Standing(x, ordered, tied, tie)

    def rows(self, lines: Iterable[Line]) -> pd.DataFrame:
        return self.table.loc[[row for line in lines for row in line.rows]]


def views(records: Iterable[Record], table: pd.DataFrame, catalogue: Catalogue) -> list[View]:
    """Return a view of each figure of the page. table: `stats.frame` of the records."""
    on_cpu = all(record.environment.get("device_kind") != "cuda" for record in records)
    return [View(table, catalogue, figure, on_cpu) for figure in figures(table, catalogue)]


def standings(view: View) -> list[Standing]:
    """Return the ranking at each x with results of at least two compared lines, in order of x.

    An x at which the best line `may_lose` is left out.
    """
    labels = view.labels(view.comparable, view.shared_settings)
    lines = {labels[line.name]: line for line in view.compared if view.metric.better}
    at: dict[float, list[tuple[Point, str]]] = {}
    for label, line in lines.items():
        for point in view.points(line):
            at.setdefault(point.x, []).append((point, label))
    found = [view.standing(x, ranks) for x, ranks in sorted(at.items()) if len(ranks) > 1]
    return [each for each in found if not view.may_lose(lines[each.ranks[0][1]], each.x)]


def best_standing(view: View) -> Standing | None:
    """Rank the compared lines by their highest values; None if fewer than two lines can be ranked.

    A line whose cases end before the x of the overall highest value is left out, because it may rise further.
    If x is a result (`Figure.along`), no case with a larger x is missing.
    """
    labels = view.labels(view.comparable, view.shared_settings)
    tops = [(max(view.points(line), key=lambda point: point.value), line) for line in view.compared]
    tops.sort(key=lambda top: -top[0].value)
    along = view.figure.along
    ranks = [(top, labels[line.name]) for top, line in tops if along or max(view.started[line.name]) >= tops[0][0].x]
    return view.standing(ranks[0][0].x, ranks) if len(ranks) > 1 else None


def bar(cells: Mapping[str, Any], y: str) -> tuple[float, float]:
    """Return the ends (low, high) of a point's error bar, divided by the point's value.

    cells: the point's row of the table. y: the column of its value.
    Latencies use the interval of latency_ms; other metrics use their own interval if they have one.
    Rates without an interval of their own use that of latency_ms, inverted.
    Returns (1, 1) if the interval is unknown.
    """
    low, high = (cells.get(name, math.nan) for name in interval_columns(y))
    if y not in LATENCIES and pd.notna(low) and pd.notna(high):
        return low / cells[y], high / cells[y]
    middle, low, high = (cells[name] for name in _LATENCY)
    if pd.isna(low) or low <= 0 or y not in LATENCIES + RATES:
        return 1.0, 1.0
    return (low / middle, high / middle) if y in LATENCIES else (middle / high, middle / low)
