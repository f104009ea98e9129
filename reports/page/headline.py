"""What did the run find? A few sentences, each computed from the records."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd

from harness.catalogue import Catalogue, PaperClaim
from reports.page.figures import Figure
from reports.page.lines import Line
from reports.stats import CACHE_FULL, MACHINE_COLUMNS, MARKS

LEVEL = 0.05  # two numbers of one run that differ by less are called level: a run on another day differs by 2 to 3%
MOST = 5  # sentences


@dataclass(frozen=True)
class _Standing:
    """The lines at one x, the best first, as (value, label); `level`: how many of them are level with the best."""

    x: float
    places: list[tuple[float, str]]
    level: tuple[str, ...]


def headline(table: pd.DataFrame, catalogue: Catalogue, figures: Sequence[Figure]) -> list[str]:
    """At most `MOST` sentences on the figures that answer the run's question; on the first two where none does."""
    answering = [figure for figure in figures if figure.headline] or list(figures[:2])
    curves = [figure for figure in answering if not figure.best]
    sentences = [
        *(_winners(table, catalogue, figure) for figure in curves[:2]),
        " ".join(filter(None, _claims(table, catalogue, curves))),
        " ".join(filter(None, (_best(table, catalogue, figure) for figure in answering if figure.best))),
        _unfit(table, catalogue, answering),
        _lost(table),
    ]
    return [sentence for sentence in sentences if sentence][:MOST]


def described(table: pd.DataFrame, catalogue: Catalogue, figure: Figure) -> str:
    """A figure in a sentence, for who does not see it: who is best, or else what is drawn."""
    if not (figure.lines and figure.lines[0].base_rows):
        found = _best(table, catalogue, figure) if figure.best else _winners(table, catalogue, figure)
        if found:
            return found
    drawn = [(line, list(_points(table, catalogue, figure, line))) for line in figure.lines if not line.y]
    points = [point for _, found in drawn for point in found]
    if not points or figure.lines[0].base_rows:
        said = _counted(len(figure.lines), "line") if points else "no case has a result"
        return f"{figure.title}: {said}."
    (first, *_, last), (least, *_, most) = (sorted(column * 2) for column in map(list, zip(*points, strict=True)))
    over = catalogue.axis(figure.x).phrase.replace("{}", _span(said_x(first), said_x(last)))
    unit = catalogue.metric(figure.y).unit
    lines = _counted(sum(bool(found) for _, found in drawn), "line")
    values = _span(f"{least:.3g}", f"{most:.3g}")
    return f"{figure.title}: {lines} over {over}, {'from ' if least != most else ''}{values} {unit}".rstrip() + "."


def _span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'s' if count != 1 else ''}"


def small_models(table: pd.DataFrame, kinds: Iterable[str]) -> str:
    """What a reader of a run on a CPU must know first; "" for a GPU. kinds: the kinds of device of its records."""
    if set(kinds) != {"cpu"}:
        return ""
    sizes = ", ".join(sorted(table["size"].unique()))
    devices = " and ".join(device for device in table["device"].unique() if device) or "a CPU"
    return f"Small models ({sizes}) on a CPU, {devices}: these are not the paper's figures, which need a GPU."


def _winners(table: pd.DataFrame, catalogue: Catalogue, figure: Figure) -> str:
    """Who is fastest where, by how much, and where lines cross."""
    standings = _standings(table, catalogue, figure)
    if not standings:
        return ""
    spans = [(level, [each.x for each in group]) for level, group in _spans(standings)]
    last = standings[-1]
    axis = catalogue.axis(figure.x).phrase.replace("{}", "").strip() or figure.x
    told = ", ".join(_span_words(level, xs, standings, axis) for level, xs in spans)
    return f"{figure.title}: {told}{_lead(last, catalogue, figure)}{_caveat(table, figure)}."


def _spans(standings: list[_Standing]) -> Iterator[tuple[tuple[str, ...], list[_Standing]]]:
    for level, group in groupby(standings, key=lambda each: each.level):
        yield level, list(group)


def _span_words(level: tuple[str, ...], xs: list[float], standings: list[_Standing], axis: str) -> str:
    who = f"{level[0]} is fastest" if len(level) == 1 else f"{_listed(level)} are level"
    first, last = standings[0].x, standings[-1].x
    if (xs[0], xs[-1]) == (first, last):
        return f"{who} at every {axis} tried ({said_x(first)} to {said_x(last)})" if len(xs) > 1 else who
    if xs[0] == first and len(xs) > 1:
        return f"{who} up to {said_x(xs[-1])}"
    if xs[-1] == last and len(xs) > 1:
        return f"{who} from {said_x(xs[0])} on"
    return f"{who} at {said_x(xs[0])}" if len(xs) == 1 else f"{who} from {said_x(xs[0])} to {said_x(xs[-1])}"


def _lead(last: _Standing, catalogue: Catalogue, figure: Figure) -> str:
    """By how much, at the largest x."""
    (value, _), (next_value, next_who) = last.places[:2]
    unit = catalogue.metric(figure.y).unit
    if len(last.level) > 1:
        return ""
    factor = next_value / value if _lower_is_better(catalogue, figure) else value / next_value
    at = said_x(last.x) if figure.x == "context" else catalogue.axis(figure.x).phrase.replace("{}", said_x(last.x))
    return f"; at {at} it takes {value:.3g} {unit}, {factor:.3g} times as fast as {next_who}, the next"


def _standings(table: pd.DataFrame, catalogue: Catalogue, figure: Figure) -> list[_Standing]:
    """In order of x, where at least two of the primary lines have a result."""
    if not catalogue.metric(figure.y).better:
        return []
    at: dict[float, list[tuple[float, str]]] = {}
    labels = _labels(figure)
    for line in _primary(figure):
        for x, value in _points(table, catalogue, figure, line):
            at.setdefault(x, []).append((value, labels[line.name]))
    return [_standing(x, places, catalogue, figure) for x, places in sorted(at.items()) if len(places) > 1]


def _standing(x: float, places: list[tuple[float, str]], catalogue: Catalogue, figure: Figure) -> _Standing:
    lower = _lower_is_better(catalogue, figure)
    ordered = sorted(places, key=lambda place: place[0] if lower else -place[0])
    best = ordered[0][0]
    level = [who for value, who in places if max(value, best) <= (1 + LEVEL) * min(value, best)]
    return _Standing(x, ordered, tuple(level))


def _points(table: pd.DataFrame, catalogue: Catalogue, figure: Figure, line: Line) -> Iterator[tuple[float, float]]:
    """(x, value in its unit) of the points with a result."""
    scale = catalogue.metric(figure.y).scale
    for x, value in zip(table[figure.x].take(line.rows), table[figure.y].take(line.rows), strict=True):
        if pd.notna(value) and value > 0:
            yield float(x), float(value) / scale


def _lower_is_better(catalogue: Catalogue, figure: Figure) -> bool:
    return catalogue.metric(figure.y).better == "lower"


def _primary(figure: Figure) -> list[Line]:
    return [line for line in figure.lines if line.primary and not line.y and not line.base_rows]


def _labels(figure: Figure) -> dict[str, str]:
    """What a sentence calls each primary line: its system where no other line is of it."""
    shorts = [line.short for line in _primary(figure)]
    return {line.name: line.short if shorts.count(line.short) == 1 else line.name for line in _primary(figure)}


def _claims(table: pd.DataFrame, catalogue: Catalogue, figures: Iterable[Figure]) -> Iterator[str]:
    for figure in figures:
        for claim in figure.claims:
            yield _judged(table, catalogue, figure, claim)


def _judged(table: pd.DataFrame, catalogue: Catalogue, figure: Figure, claim: PaperClaim) -> str:
    """Whether a claim of the source holds at every x that it is about; "" where the run cannot say."""
    own, other = (_of_system(table, catalogue, figure, system) for system in (claim.system, claim.other))
    lower = _lower_is_better(catalogue, figure)
    faster = {x: (other[x] / own[x] if lower else own[x] / other[x]) for x in sorted(own.keys() & other.keys())}
    faster = {x: factor for x, factor in faster.items() if x >= claim.at_least}
    if not faster:
        return ""
    names = [catalogue.system_label(system) for system in (claim.system, claim.other)]
    missed = [x for x, factor in faster.items() if factor < 1 - claim.margin]
    range_said = " to ".join(dict.fromkeys(f"{each:.3g}" for each in (min(faster.values()), max(faster.values()))))
    verdict = f"does not hold here at {_listed([said_x(x) for x in missed])}" if missed else "holds here"
    return f"The paper's “{claim.text}” {verdict}: {names[0]} is {range_said} times as fast as {names[1]}."


def _of_system(table: pd.DataFrame, catalogue: Catalogue, figure: Figure, system: str) -> dict[float, float]:
    """The values of a system's primary lines by x."""
    lines = [line for line in _primary(figure) if line.system == system]
    return {x: value for line in lines for x, value in _points(table, catalogue, figure, line)}


def _best(table: pd.DataFrame, catalogue: Catalogue, figure: Figure) -> str:
    """The line with the highest best, where, and the next."""
    labels = _labels(figure)
    tops, tried = [], set()
    for line in _primary(figure):
        points = list(_points(table, catalogue, figure, line))
        tried |= {x for x, _ in points}
        if points:
            x, value = max(points, key=lambda point: point[1])
            tops.append((value, x, labels[line.name]))
    tops.sort(reverse=True)
    if len(tops) < 2:
        return ""
    (value, x, who), (next_value, _, next_who) = tops[:2]
    unit = catalogue.metric(figure.y).unit
    axis = catalogue.axis(figure.x).phrase.replace("{}", f"{x:,.0f}")
    alone = ", the only one tried" if len(tried) == 1 else ""
    ahead = f"{value / next_value:.3g} times that of {next_who}, the next"
    if value <= (1 + LEVEL) * next_value:
        ahead = f"level with {next_who}"
    return f"{figure.title}: {who} reaches {value:,.0f} {unit} at {axis}{alone}, {ahead}{_caveat(table, figure)}."


def _unfit(table: pd.DataFrame, catalogue: Catalogue, figures: Iterable[Figure]) -> str:
    """What memory did not hold, of the lines that answer the run's question."""
    beyond: dict[str, list[str]] = {}
    full: dict[str, list[str]] = {}
    for figure in figures:
        labels = _labels(figure)
        for line in _primary(figure):
            rows = table.loc[line.rows]
            marks = rows[MARKS].fillna("") if MARKS in rows else pd.Series("", rows.index)
            for found, kept in ((beyond, rows["status"] == "oom"), (full, marks.str.contains(CACHE_FULL))):
                if kept.any():
                    where = f"{_at(catalogue, figure, rows[kept])} ({figure.title[:1].lower()}{figure.title[1:]})"
                    found.setdefault(where, []).append(labels[line.name])
    parts = (("Did not fit in memory", beyond), ("Only a part of the batch ran at once", full))
    return " ".join(f"{what}: {_by_where(found)}." for what, found in parts if found)


def _by_where(found: dict[str, list[str]]) -> str:
    """The first two places; how many more there are."""
    said = [f"{_listed(who)} {where}" for where, who in found.items()]
    more = (
        [f"and in {len(said) - 2} more figures" if len(said) > 3 else "and in another figure"] if len(said) > 2 else []
    )
    return "; ".join([*said[:2], *more])


def _at(catalogue: Catalogue, figure: Figure, rows: pd.DataFrame) -> str:
    values = sorted(rows[figure.x].unique())
    ends = " to ".join(dict.fromkeys(said_x(value) for value in (values[0], values[-1])))
    return "at " + catalogue.axis(figure.x).phrase.replace("{}", ends)


def _lost(table: pd.DataFrame) -> str:
    counts = table["status"].value_counts().drop("ok", errors="ignore")
    if not len(counts):
        return f"Every one of the {len(table)} cases has a result."
    said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"{counts.sum()} of {len(table)} cases have no result ({said})."


def _caveat(table: pd.DataFrame, figure: Figure) -> str:
    """What makes the comparison of a sentence less than it seems."""
    rows = table.loc[[row for line in _primary(figure) for row in line.rows]]
    rows = rows[rows["status"] == "ok"]
    several = [name for name in MACHINE_COLUMNS if rows[name].nunique() > 1]
    if several == ["device_id"]:
        return f" (from {rows['device_id'].nunique()} GPUs of one model)"
    return " (not all from one machine and commit)" if several else ""


def said_x(value: float) -> str:
    """2048 as 2k, as on the axes."""
    whole = int(value)
    return f"{whole // 1024}k" if whole >= 1024 and whole % 1024 == 0 else f"{value:g}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
