"""What do the lines of a figure show: points with bars, which lines may be compared, and who is ahead where?"""

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import pandas as pd

from harness.measure.interval import FEWEST
from harness.schema.catalogue import Catalogue
from reports.page.figures import LATENCIES, RATES, Figure, own_ends
from reports.page.lines import BETWEEN, Line
from reports.stats import (
    FEW_SAMPLES,
    LOADED,
    MARKS,
    REPEAT_COLUMNS,
    UNSTEADY,
    UNSTEADY_TIMES,
    UNTRIED,
    marks_in,
    option_columns,
)
from reports.words import said_setting

LEVEL = 0.05  # two numbers of one run that differ by less are called level: a run on another day differs by 2 to 3%
# Two numbers that differ by less are not told apart where one of them is doubtful: a step of vLLM's, unsteady in both
# of two runs, took 36% longer in one of them.
OFF = 0.5
# What a point may be marked for that makes its number doubtful, in words.
DOUBTS = {
    FEW_SAMPLES: f"in fewer than {FEWEST} samples",
    LOADED: "beside other programs",
    **dict.fromkeys((UNSTEADY, *UNSTEADY_TIMES.values()), "unsteady"),
}
# Columns whose bars are drawn, as points.js draws them: that of the latency, which rates divide by.
_BARS = (REPEAT_COLUMNS, ("latency_ms_low", "latency_ms_high"))
# What is asked of a system: lines that differ in it are not compared.
_ASKED = ("size", "batch", "context", "dtype", "l2")


@dataclass(frozen=True)
class Point:
    """A point with a result, in its unit: its value and the ends of its bar.

    off: by what share it may be off, as a mark makes it doubtful; 0 where none does.
    disturbed: measured on a CPU that others used, which takes some systems tens of times as long and others not.
    """

    x: float
    value: float
    low: float
    high: float
    off: float
    disturbed: bool = False

    def overlaps(self, other: "Point") -> bool:
        """Whether the bars of the two overlap."""
        return max(self.low, other.low) <= min(self.high, other.high)

    def differs_little(self, other: "Point", share: float = LEVEL) -> bool:
        """Whether another run may well turn the two round."""
        return max(self.value, other.value) <= (1 + share) * min(self.value, other.value)

    def hides(self, other: "Point") -> bool:
        """Whether the run does not tell which of the two is better."""
        return self.disturbed or other.disturbed or self.is_near(other)

    def is_near(self, other: "Point") -> bool:
        """Whether their bars overlap, or a mark makes it doubtful that they differ; not of two that are level."""
        if off := max(self.off, other.off):
            return self.overlaps(other) or self.differs_little(other, off)
        return self.overlaps(other) and not self.differs_little(other)


@dataclass(frozen=True)
class Standing:
    """The lines at one x, the best first, as (point, label).

    `level`: those of them that are level with the best, or not told from it; `tie`: what they are, in words.
    """

    x: float
    places: list[tuple[Point, str]]
    level: tuple[str, ...]
    tie: str

    @property
    def disturbed(self) -> bool:
        return any(point.disturbed for point, _ in self.places)


@dataclass(frozen=True)
class View:
    """A figure, with the rows that it draws and the names of what is in them."""

    table: pd.DataFrame
    catalogue: Catalogue
    figure: Figure

    @property
    def unit(self) -> str:
        return self.catalogue.metric(self.figure.y).unit

    @property
    def lower_is_better(self) -> bool:
        return self.catalogue.metric(self.figure.y).better == "lower"

    @property
    def is_speed(self) -> bool:
        return self.figure.y in LATENCIES + RATES or self.unit in ("ms", "µs")

    @property
    def axis(self) -> str:
        """What x is called in a sentence: `batch`."""
        return self.at("").strip() or self.figure.x

    @property
    def is_parts(self) -> bool:
        """Whether the lines are parts of one computation, which add up and do not compete."""
        return "part" in self.table and bool((self.rows(self.ranked)["part"].fillna("") != "").any())

    @cached_property
    def ranked(self) -> list[Line]:
        """The lines that answer the figure's question, and those with a result of systems that it does not name."""
        drawn = [line for line in self.figure.lines if not line.y and not line.base_rows]
        return [line for line in drawn if line.primary or (line.unnamed and self.points(line))]

    @cached_property
    def alike(self) -> list[Line]:
        """The ranked lines that are alike in all but system and backend, with a result or without.

        Of several such sets that with the most lines that have one, of these that of the most options at their
        defaults, of these the last. A line without a setting that sets others apart is alike with each of them.
        """
        settings = [(line, self.settings(line)) for line in self.ranked]
        distinct: dict[tuple[Any, ...], dict[str, Any]] = {}
        for line, own in settings:
            if self.points(line):
                distinct.pop(tuple(own.items()), None)  # the last of several that are equal counts
                distinct[tuple(own.items())] = own
        best: tuple[tuple[int, int], list[Line]] = (0, 0), []
        for wanted in distinct.values():
            lines = [line for line, own in settings if own.items() <= wanted.items()]
            usual = sum(self.catalogue.axis(name).default == value for name, value in wanted.items())
            weight = len(self._measured(lines)), usual
            if weight >= best[0]:
                best = weight, lines
        return best[1]

    @cached_property
    def compared(self) -> list[Line]:
        """The lines that are alike and have a result."""
        return self._measured(self.alike)

    def _measured(self, lines: Iterable[Line]) -> list[Line]:
        return [line for line in lines if self.points(line)]

    @cached_property
    def _apart(self) -> list[str]:
        """The columns that set lines apart: what is asked for and, beside others, what a system differs from itself in.

        A figure of one system compares its settings.
        """
        rows = self.rows(self.ranked)
        found = [name for name in _ASKED if rows[name].nunique() > 1]
        if rows["system"].nunique() > 1:
            own = rows.groupby(["system", "backend"], sort=False)[["state_dtype", *option_columns(rows)]]
            found += [name for name, most in own.nunique().max().items() if most > 1]
        return [name for name in found if name != self.figure.x]

    def settings(self, line: Line) -> dict[str, Any]:
        """The values of a line in the columns that set lines apart, where it has them."""
        values = self.table.loc[line.rows[0], self._apart]
        return {name: value for name, value in values.items() if pd.notna(value) and value != ""}

    @cached_property
    def tried(self) -> list[float]:
        """Where at least one of the lines that are alike was tried, in order."""
        rows = self.rows(self.alike)
        return sorted(rows[self.figure.x][~rows["status"].isin(UNTRIED)].unique())

    @cached_property
    def held(self) -> list[str]:
        """What the compared lines have and others have not, in words."""
        values = dict(chain.from_iterable(self.settings(line).items() for line in self.compared))
        return [said_setting(self.catalogue.axis(name), value) for name, value in values.items()]

    def labels(self, lines: Sequence[Line], said: Container[str] = ()) -> dict[str, str]:
        """What a sentence calls each of these lines: its system where no other of them is of it.

        Else its name, without what the sentence has `said` of all, where no other is called so.
        """
        names = [line.name.split(BETWEEN) for line in lines]
        shared = set(names[0]).intersection(*names[1:]) if len(names) > 1 else set()
        rests = [BETWEEN.join(part for part in name if part not in said and part not in shared) for name in names]
        found = {line.name: line.name for line in lines}
        for own in (rests, [line.short for line in lines]):
            found |= {line.name: label for line, label in zip(lines, own, strict=True) if own.count(label) == 1}
        return found

    def at(self, x: str) -> str:
        """A value of x in words: `batch 16`."""
        return self.catalogue.axis(self.figure.x).phrase.replace("{}", x)

    def points(self, line: Line) -> Sequence[Point]:
        """The points with a result; each line is read once."""
        rows = tuple(line.rows)
        if rows not in self._points:
            self._points[rows] = list(self._read(line))
        return self._points[rows]

    @cached_property
    def _points(self) -> dict[tuple[int, ...], list[Point]]:
        return {}

    def _read(self, line: Line) -> Iterator[Point]:
        x, y, scale = self.figure.x, self.figure.y, self.catalogue.metric(self.figure.y).scale
        columns = (x, y, *own_ends(y), "latency_ms", *chain(*_BARS), MARKS, "device_id", "status")
        read = [name for name in dict.fromkeys(columns) if name in self.table]
        for cells in self.table.loc[list(line.rows), read].to_dict("records"):
            value = cells[y]
            if cells["status"] == "ok" and pd.notna(value) and value > 0:
                low, high = (float(value) / scale * end for end in bar(cells, y))
                marks = marks_in(cells.get(MARKS), y)
                disturbed = LOADED in marks and not cells.get("device_id")
                off = OFF if any(mark in DOUBTS for mark in marks) else 0.0
                yield Point(float(cells[x]), float(value) / scale, low, high, off, disturbed)

    def reach(self, line: Line) -> float:
        """The largest x at which the line was tried, or skipped as a smaller one had not fitted."""
        rows = self.table.loc[list(line.rows)]
        return max(rows[self.figure.x][rows["status"] != "unstarted"])

    def of_system(self, system: str) -> dict[float, Point]:
        """The points of a system's compared lines by x."""
        lines = [line for line in self.compared if line.system == system]
        return {point.x: point for line in lines for point in self.points(line)}

    def standing(self, x: float, places: Sequence[tuple[Point, str]]) -> Standing:
        """Level with the best is what differs little from it, and what the run does not tell from it."""
        ordered = sorted(places, key=lambda place: place[0].value if self.lower_is_better else -place[0].value)
        best, others = ordered[0][0], [point for point, _ in ordered[1:]]
        level = tuple(who for point, who in places if best.differs_little(point) or best.hides(point))
        hidden = [point for point in others if best.hides(point)]
        tie = ("not told apart" if hidden else "level") if all(map(best.is_near, hidden)) else "not ranked"
        return Standing(x, ordered, level, tie)

    def rows(self, lines: Iterable[Line]) -> pd.DataFrame:
        """What the lines draw."""
        return self.table.loc[[row for line in lines for row in line.rows]]


def standings(view: View) -> list[Standing]:
    """In order of x, where at least two of the compared lines have a result."""
    if not view.catalogue.metric(view.figure.y).better:
        return []
    at: dict[float, list[tuple[Point, str]]] = {}
    labels = view.labels(view.alike, view.held)
    for line in view.compared:
        for point in view.points(line):
            at.setdefault(point.x, []).append((point, labels[line.name]))
    return [view.standing(x, places) for x, places in sorted(at.items()) if len(places) > 1]


def bar(cells: Mapping[str, Any], y: str) -> tuple[float, float]:
    """The ends of a point's bar over its value: over processes where there are several, else of its own column."""
    low, high = (cells.get(name, math.nan) for name in own_ends(y))
    if y not in LATENCIES and pd.notna(low) and pd.notna(high):
        return low / cells[y], high / cells[y]
    for ends in _BARS:
        low, high = (cells.get(name, math.nan) for name in ends)
        if pd.notna(low) and pd.notna(high) and low > 0:
            if y in LATENCIES:
                return low / cells["latency_ms"], high / cells["latency_ms"]
            if y in RATES:
                return cells["latency_ms"] / high, cells["latency_ms"] / low
    return 1.0, 1.0
