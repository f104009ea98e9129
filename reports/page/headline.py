"""What did the run find? A few sentences, each computed from the records."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import Any

import pandas as pd

from harness.case import Case
from harness.catalogue import Catalogue, PaperClaim
from harness.interval import FEWEST
from harness.reason import counted, rounded, span
from reports.fairness import MODEL_COLUMNS, MODEL_OPTIONS
from reports.page.figures import AMOUNTS, LATENCIES, RATES, Figure, own_ends
from reports.page.lines import Line
from reports.spoken import said_setting, said_x
from reports.stats import (
    CACHE_FULL,
    FEW_SAMPLES,
    HOT,
    LOADED,
    MACHINE_COLUMNS,
    MARKS,
    REPEAT_COLUMNS,
    UNSTEADY,
    UNTRIED,
    marks_in,
    option_columns,
)

LEVEL = 0.05  # two numbers of one run that differ by less are called level: a run on another day differs by 2 to 3%
OFF = 0.5  # two numbers, one of them marked as doubtful, that differ by less are not told apart
# What a point may be marked for that makes its number doubtful, in words.
DOUBTS = {FEW_SAMPLES: f"in fewer than {FEWEST} samples", LOADED: "beside other programs", UNSTEADY: "unsteady"}
# Heat takes a few percent, which turns round what is level and nothing else.
_COUNTED = DOUBTS | {HOT: "on a GPU that heat slowed down"}
# Columns whose bars are drawn, as points.js draws them: that of the latency, which rates divide by.
_BARS = (REPEAT_COLUMNS, ("latency_ms_low", "latency_ms_high"))
# What is asked of a system: lines that differ in it are not compared.
_ASKED = ("size", "batch", "context", "dtype", "l2")


@dataclass(frozen=True)
class _Point:
    """A point with a result, in its unit: its value, the ends of its bar, and whether a mark makes it doubtful.

    disturbed: measured on a CPU that others used, which takes some systems tens of times as long and others not.
    """

    x: float
    value: float
    low: float
    high: float
    doubtful: bool
    disturbed: bool = False

    def overlaps(self, other: "_Point") -> bool:
        """Whether the bars of the two overlap."""
        return max(self.low, other.low) <= min(self.high, other.high)

    def differs_little(self, other: "_Point", share: float = LEVEL) -> bool:
        """Whether another run may well turn the two round."""
        return max(self.value, other.value) <= (1 + share) * min(self.value, other.value)

    def hides(self, other: "_Point") -> bool:
        """Whether the run does not tell which of the two is better."""
        if self.disturbed or other.disturbed:
            return True
        if self.doubtful or other.doubtful:
            return self.overlaps(other) or self.differs_little(other, OFF)
        return self.overlaps(other) and not self.differs_little(other)


@dataclass(frozen=True)
class _Standing:
    """The lines at one x, the best first, as (point, label).

    `level`: those of them that are level with the best; `untold`: of these the run does not say which is better.
    """

    x: float
    places: list[tuple[_Point, str]]
    level: tuple[str, ...]
    untold: bool


@dataclass(frozen=True)
class _View:
    """A figure, with the rows that it draws and the names of what is in them."""

    table: pd.DataFrame
    catalogue: Catalogue
    figure: Figure
    uneven: Mapping[tuple[Any, ...], str] = field(default_factory=dict)  # as `fairness.uneven`

    @property
    def unit(self) -> str:
        return self.catalogue.metric(self.figure.y).unit

    @property
    def lower_is_better(self) -> bool:
        return self.catalogue.metric(self.figure.y).better == "lower"

    @property
    def is_speed(self) -> bool:
        return self.figure.y in LATENCIES + RATES

    @property
    def ranked(self) -> list[Line]:
        """The lines that answer the figure's question, and those with a result of systems that it does not name."""
        drawn = [line for line in self.figure.lines if not line.y and not line.base_rows]
        return [line for line in drawn if line.primary or (line.unnamed and any(self.points(line)))]

    @property
    def opening(self) -> str:
        """What a sentence begins with: the figure's title, and what the compared lines have and others have not."""
        shared = dict(chain.from_iterable(self._settings(line).items() for line in self.compared))
        phrases = (said_setting(self.catalogue.axis(name), value) for name, value in shared.items())
        said = _listed(list(phrases)) if shared else ""
        return f"{self.figure.title}: for {said}," if said else f"{self.figure.title}:"

    @cached_property
    def alike(self) -> list[Line]:
        """The ranked lines that are alike in all but system and backend, with a result or without.

        Of several such sets that with the most lines that have one, of these that of the most options at their
        defaults, of these the last. A line without a setting that sets others apart is alike with each of them.
        """
        settings = [(line, self._settings(line)) for line in self.ranked]
        best: tuple[tuple[int, int], list[Line]] = (0, 0), []
        for wanted in (self._settings(line) for line in self._measured(self.ranked)):
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
        return [line for line in lines if any(self.points(line))]

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

    def _settings(self, line: Line) -> dict[str, Any]:
        """The values of a line in the columns that set lines apart, where it has them."""
        values = self.table.loc[line.rows[0], self._apart]
        return {name: value for name, value in values.items() if pd.notna(value) and value != ""}

    @cached_property
    def tried(self) -> list[float]:
        """Where at least one of the lines that are alike was tried, in order."""
        rows = self.rows(self.alike)
        return sorted(rows[self.figure.x][~rows["status"].isin(UNTRIED)].unique())

    def labels(self, lines: Sequence[Line]) -> dict[str, str]:
        """What a sentence calls each of these lines: its system where no other of them is of it."""
        shorts = [line.short for line in lines]
        return {line.name: line.short if shorts.count(line.short) == 1 else line.name for line in lines}

    def at(self, x: str) -> str:
        """A value of x in words: `batch 16`."""
        return self.catalogue.axis(self.figure.x).phrase.replace("{}", x)

    def points(self, line: Line) -> Iterator[_Point]:
        """The points with a result."""
        x, y, scale = self.figure.x, self.figure.y, self.catalogue.metric(self.figure.y).scale
        columns = (x, y, *own_ends(y), "latency_ms", *chain(*_BARS), MARKS, "device_id")
        read = [name for name in dict.fromkeys(columns) if name in self.table]
        for cells in self.table.loc[list(line.rows), read].to_dict("records"):
            value = cells[y]
            if pd.notna(value) and value > 0:
                low, high = (float(value) / scale * end for end in _bar(cells, y))
                marks = () if y in AMOUNTS else marks_in(cells.get(MARKS))
                disturbed = LOADED in marks and not cells.get("device_id")
                is_doubted = any(mark in DOUBTS for mark in marks)
                yield _Point(float(cells[x]), float(value) / scale, low, high, is_doubted, disturbed)

    def reach(self, line: Line) -> float:
        """The largest x at which the line was tried, or skipped as a smaller one had not fitted."""
        rows = self.table.loc[list(line.rows)]
        return max(rows[self.figure.x][rows["status"] != "unstarted"])

    def of_system(self, system: str) -> dict[float, _Point]:
        """The points of a system's compared lines by x."""
        lines = [line for line in self.compared if line.system == system]
        return {point.x: point for line in lines for point in self.points(line)}

    def rows(self, lines: Iterable[Line]) -> pd.DataFrame:
        """What the lines draw."""
        return self.table.loc[[row for line in lines for row in line.rows]]


def headline(
    table: pd.DataFrame,
    catalogue: Catalogue,
    figures: Sequence[Figure],
    missing: Sequence[Case] = (),
    uneven: Mapping[tuple[Any, ...], str] | None = None,
) -> list[str]:
    """Up to six sentences on the figures that answer the run's question; on the first two where none does.

    missing: the planned cases without a record. uneven: as `fairness.uneven` says it.
    """
    answering = [figure for figure in figures if figure.headline] or figures[:2]
    views = [_View(table, catalogue, figure, uneven or {}) for figure in answering]
    curves = [each for each in views if not each.figure.best]
    sentences = [
        *map(_winners, curves[:2]),
        " ".join(filter(None, map(_claims, curves))),
        " ".join(filter(None, (_best(each) for each in views if each.figure.best))),
        _unfit(views),
        _lost(table, len(missing)),
    ]
    return [sentence for sentence in sentences if sentence]


def described(table: pd.DataFrame, catalogue: Catalogue, figure: Figure) -> str:
    """A figure in a sentence, for who does not see it: who is best, or else what is drawn."""
    view = _View(table, catalogue, figure)
    if not (figure.lines and figure.lines[0].base_rows):
        found = _best(view) if figure.best else _winners(view)
        if found:
            return found
    drawn = [(line, list(view.points(line))) for line in figure.lines if not line.y]
    points = [point for _, found in drawn for point in found]
    if not points or figure.lines[0].base_rows:
        said = counted(len(figure.lines), "line") if points else "no case has a result"
        return f"{figure.title}: {said}."
    (first, *_, last) = sorted([point.x for point in points] * 2)
    (least, *_, most) = sorted([point.value for point in points] * 2)
    over = view.at(span(said_x(first), said_x(last)))
    lines = counted(sum(bool(found) for _, found in drawn), "line")
    values = span(rounded(least), rounded(most))
    words = f"{figure.title}: {lines} over {over}, {'from ' if least != most else ''}{values} {view.unit}"
    return words.rstrip() + "."


def small_models(table: pd.DataFrame, kinds: Iterable[str]) -> str:
    """What a reader of a run on a CPU must know first; "" for a GPU. kinds: the kinds of device of its records."""
    if set(kinds) != {"cpu"}:
        return ""
    sizes = ", ".join(sorted(table["size"].unique()))
    devices = " and ".join(device for device in table["device"].unique() if device) or "a CPU"
    return f"Small models ({sizes}) on a CPU, {devices}: these are not the paper's figures, which need a GPU."


def unfinished(table: pd.DataFrame, missing: Sequence[Case], catalogue: Catalogue) -> str:
    """What the reader of a run that ended early, or still goes on, must know first; "" for a whole one."""
    if not missing:
        return ""
    counts = Counter(case.system for case in missing)
    measured = set(table["system"])
    who = [
        f"{'all ' if system not in measured else ''}{count} of {catalogue.system_label(system)}"
        for system, count in counts.items()
    ]
    total = len(table) + len(missing)
    return f"Unfinished: {len(missing)} of the {total} planned cases have no record, {_listed(who)}."


def _winners(view: _View) -> str:
    """Who is fastest where, by how much, and where lines cross."""
    standings = _standings(view)
    if not standings:
        return ""
    spans = [(_who(group[0], view), [each.x for each in group]) for group in _spans(standings, view)]
    words = ", ".join(_span_words(who, xs, view) for who, xs in spans)
    caveat = _caveat(view, [standing.x for standing in standings])
    told = [standing for standing in standings if len(standing.level) == 1]
    return f"{view.opening} {words}{_lead(told[-1], view) if told else ''}{caveat}."


def _spans(standings: list[_Standing], view: _View) -> Iterator[list[_Standing]]:
    for _, group in groupby(standings, key=lambda standing: _who(standing, view)):
        yield list(group)


def _who(standing: _Standing, view: _View) -> str:
    if len(standing.level) == 1:
        least = "has the least" if view.lower_is_better else "has the most"
        return f"{standing.level[0]} {'is fastest' if view.is_speed else least}"
    return f"{_listed(standing.level)} are {'not told apart' if standing.untold else 'level'}"


def _span_words(who: str, xs: list[float], view: _View) -> str:
    """`every`, `up to` and `from ... on` are of all x tried; where one between these is missing, each is said."""
    tried = view.tried
    if len(xs) == 1 or not _are_neighbours(xs, tried):
        return who if xs == tried else f"{who} at {_listed([said_x(x) for x in xs])}"
    if xs == tried:
        axis = view.at("").strip() or view.figure.x
        return f"{who} at every {axis} tried ({said_x(xs[0])} to {said_x(xs[-1])})"
    if xs[0] == tried[0]:
        return f"{who} up to {said_x(xs[-1])}"
    if xs[-1] == tried[-1]:
        return f"{who} from {said_x(xs[0])} on"
    return f"{who} from {said_x(xs[0])} to {said_x(xs[-1])}"


def _lead(last: _Standing, view: _View) -> str:
    """By how much, at the largest x at which one is ahead."""
    (best, _), (after, next_who) = last.places[:2]
    at = said_x(last.x) if view.figure.x == "context" else view.at(said_x(last.x))
    own, others = (f"{rounded(point.value)} {view.unit}" for point in (best, after))
    if not view.is_speed:
        return f"; at {at} it has {own}, {next_who}, the next, has {others}"
    factor = after.value / best.value if view.lower_is_better else best.value / after.value
    return f"; at {at} it takes {own}, {rounded(factor)} times as fast as {next_who}, the next"


def _standings(view: _View) -> list[_Standing]:
    """In order of x, where at least two of the compared lines have a result."""
    if not view.catalogue.metric(view.figure.y).better:
        return []
    at: dict[float, list[tuple[_Point, str]]] = {}
    labels = view.labels(view.alike)
    for line in view.compared:
        for point in view.points(line):
            at.setdefault(point.x, []).append((point, labels[line.name]))
    return [_standing(x, places, view.lower_is_better) for x, places in sorted(at.items()) if len(places) > 1]


def _standing(x: float, places: list[tuple[_Point, str]], lower_is_better: bool) -> _Standing:
    """Level with the best is what differs little from it, and what the run does not tell from it."""
    ordered = sorted(places, key=lambda place: place[0].value if lower_is_better else -place[0].value)
    best = ordered[0][0]
    level = tuple(who for point, who in places if best.differs_little(point) or best.hides(point))
    untold = any(best.hides(point) for point, _ in ordered[1:])
    return _Standing(x, ordered, level, untold)


def _bar(cells: Mapping[str, Any], y: str) -> tuple[float, float]:
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


def doubts(rows: pd.DataFrame) -> list[str]:
    """How many rows are marked for what a reader must know of their numbers: `3 in fewer than 6 samples`."""
    marks = [marks_in(cell) for cell in rows.get(MARKS, ())]
    counts = {words: sum(mark in own for own in marks) for mark, words in _COUNTED.items()}
    return [f"{count} {words}" for words, count in counts.items() if count]


def _claims(view: _View) -> str:
    """What the source claims of a figure, after the figure's title."""
    judged = list(filter(None, (_judged(view, claim) for claim in view.figure.claims)))
    return f"{view.figure.title}: {' '.join([judged[0][0].lower() + judged[0][1:], *judged[1:]])}" if judged else ""


def _judged(view: _View, claim: PaperClaim) -> str:
    """Whether a claim of the source holds at the x that it is about; "" where none of them has both systems."""
    own, other = view.of_system(claim.system), view.of_system(claim.other)
    due = [x for x in view.tried if x >= claim.at_least]
    common = [x for x in due if x in own and x in other]
    told = [x for x in common if not own[x].hides(other[x])]
    untold = [x for x in common if x not in told]
    doubt = f" is not told at {_places(untold, due)}" if untold else ""
    said = f"The paper's “{claim.text}”"
    if not told:
        return f"{said}{doubt}." if doubt else ""
    better, worse = (other, own) if view.lower_is_better else (own, other)
    faster = {x: better[x].value / worse[x].value for x in told}
    names = [view.catalogue.system_label(system) for system in (claim.system, claim.other)]
    missed = [said_x(x) for x, factor in faster.items() if factor < 1 - claim.margin]
    range_said = span(rounded(min(faster.values())), rounded(max(faster.values())))
    whole = len(told) > 1 and told == due and claim.at_least in (0, due[0])
    met = "is exceeded here" if claim.margin and min(faster.values()) > 1 + claim.margin else "holds here"
    met += "" if whole else f" at {_places(told, due)}"
    verdict = f"does not hold here at {_listed(missed)}" if missed else met
    verdict += f" and{doubt}" if doubt else ""
    doubtful = [said_x(x) for x in told if own[x].doubtful or other[x].doubtful]
    caveat = f" (at {_listed(doubtful)} by a point that is marked as doubtful)" if doubtful else ""
    return f"{said} {verdict}: {names[0]} is {range_said} times as fast as {names[1]}{caveat}."


def _best(view: _View) -> str:
    """The line with the highest best, where, and the next of those that were tried there or at a larger batch."""
    labels, reach = view.labels(view.alike), {line.name: view.reach(line) for line in view.compared}
    tops = [(max(view.points(line), key=lambda point: point.value), line.name) for line in view.compared]
    tops.sort(key=lambda top: -top[0].value)
    tops = [(top, labels[name]) for top, name in tops if reach[name] >= tops[0][0].x]
    if len(tops) < 2:
        return ""
    (best, who), (after, next_who) = tops[:2]
    at = view.at(said_x(best.x)) + (", the only one tried" if len(view.tried) == 1 else "")
    there = "" if after.x == best.x else f", at {view.at(said_x(after.x))}"
    ahead = f"{rounded(best.value / after.value)} times that of {next_who}, the next{there}"
    if best.hides(after):
        ahead = f"not told apart from {next_who}"
    elif best.differs_little(after):
        ahead = f"level with {next_who}"
    return f"{view.opening} {who} reaches {rounded(best.value)} {view.unit} at {at}, {ahead}{_caveat(view, [])}."


def _unfit(answering: Iterable[_View]) -> str:
    """What memory did not hold, of the ranked lines."""
    beyond: dict[str, dict[str, list[str]]] = {}
    full: dict[str, dict[str, list[str]]] = {}
    for view in answering:
        labels, title = view.labels(view.ranked), view.figure.title
        for line in view.ranked:
            rows = view.table.loc[line.rows]
            marks = rows.get(MARKS, pd.Series("", rows.index))
            in_part = marks.map(lambda cell: CACHE_FULL in marks_in(cell)).astype(bool)
            for found, kept in ((beyond, rows["status"] == "oom"), (full, in_part)):
                if kept.any():
                    at = f"at {_kept_words(view, rows, kept)}"
                    found.setdefault(f"{title[:1].lower()}{title[1:]}", {}).setdefault(at, []).append(labels[line.name])
    parts = (("Did not fit in memory", beyond), ("Only a part of the batch ran at once", full))
    return " ".join(f"{what}: {_by_where(found)}." for what, found in parts if found)


def _kept_words(view: _View, rows: pd.DataFrame, kept: pd.Series) -> str:
    """Where the kept rows of a line are, and which others were not tried: all of them, or those in between."""
    x = rows[view.figure.x]
    xs, every, untried = (sorted(each.unique()) for each in (x[kept], x, x[rows["status"].isin(UNTRIED)]))
    said, between = view.at(_places(xs, every)), [each for each in untried if xs[0] < each < xs[-1]]
    if untried and len(xs) + len(untried) == len(every):
        return f"{said}, the others not tried"
    return f"{said}, with {_listed([said_x(each) for each in between])} not tried" if between else said


def _by_where(found: dict[str, dict[str, list[str]]]) -> str:
    """Who is where in the first two figures; how many more figures there are."""
    said = [
        f"{', '.join(f'{_listed(who)} {where}' for where, who in places.items())} ({title})"
        for title, places in found.items()
    ]
    more = (
        [f"and in {len(said) - 2} more figures" if len(said) > 3 else "and in another figure"] if len(said) > 2 else []
    )
    return "; ".join([*said[:2], *more])


def _lost(table: pd.DataFrame, missing: int) -> str:
    counts = table["status"].value_counts().drop("ok", errors="ignore").to_dict()
    counts |= {"without a record": missing} if missing else {}
    cases = len(table) + missing
    if not counts:
        return f"Every one of the {cases} cases has a result."
    said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"{sum(counts.values())} of {cases} cases have no result ({said})."


def _caveat(view: _View, xs: Sequence[float]) -> str:
    """What makes the comparison of a sentence, at these x, less than it seems."""
    rows = view.rows(view.compared)
    rows = rows[rows["status"] == "ok"]
    several = [name for name in MACHINE_COLUMNS if rows[name].nunique() > 1]
    said = ["not all from one machine and commit"] if several else []
    if several == ["device_id"]:
        said = [f"from {rows['device_id'].nunique()} GPUs of one model"]
    said += _uneven(view, rows)
    if view.figure.y not in AMOUNTS and (doubtful := doubts(rows)):
        said.append(f"of {counted(len(rows), 'point')}, {', '.join(doubtful)}")
    said += _absent(view, xs)
    return f" ({'; '.join(said)})" if said else ""


def _uneven(view: _View, rows: pd.DataFrame) -> Iterator[str]:
    """Which of the rows' systems are on unlike terms; of more than three how many."""
    whose: dict[str, dict[str, None]] = {}
    given = [name for name in MODEL_OPTIONS if name in rows]
    usual = {name: view.catalogue.axis(name).default for name in given}
    for row in rows[[*MODEL_COLUMNS, *given]].drop_duplicates().to_dict("records"):
        options = tuple((name, row[name]) for name in given if pd.notna(row[name]) and row[name] != usual[name])
        if words := view.uneven.get((*(row[name] for name in MODEL_COLUMNS), options)):
            whose.setdefault(words, {})[view.catalogue.system_label(row["system"])] = None
    for words, found in whose.items():
        labels = list(found)
        yield f"{words}: {_listed(labels) if len(labels) <= 3 else f'{len(labels)} systems'}"


def _absent(view: _View, xs: Sequence[float]) -> list[str]:
    """Which lines have no result at all, or none at some of these x; of more than three how many."""
    labels, found = view.labels(view.alike), dict[str, list[str]]()
    for line in view.alike:
        own = {point.x for point in view.points(line)}
        gone = [x for x in xs if x not in own]
        if gone or not own:
            found.setdefault(_gone_words(gone, xs) if own else "", []).append(labels[line.name])
    named = {where: _listed(who) if len(who) <= 3 else f"{len(who)} lines" for where, who in found.items()}
    return [f"{who} {'has' if len(found[where]) == 1 else 'have'} no result{where}" for where, who in named.items()]


def _gone_words(gone: Sequence[float], xs: Sequence[float]) -> str:
    brief = len(gone) <= 3 or _are_neighbours(gone, xs)
    return f" at {_places(gone, xs)}" if brief else f" at {len(gone)} of these {len(xs)}"


def _places(xs: Sequence[float], among: Sequence[float]) -> str:
    """These of the x in words: their span where no other lies between them, else each."""
    said = [said_x(x) for x in xs]
    return span(said[0], said[-1]) if _are_neighbours(xs, among) else _listed(said)


def _are_neighbours(xs: Sequence[float], among: Sequence[float]) -> bool:
    return list(xs) == [x for x in among if xs[0] <= x <= xs[-1]]


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
