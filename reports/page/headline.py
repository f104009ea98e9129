"""What did the run find? A few sentences, each computed from the records."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import pandas as pd

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue, PaperClaim
from harness.schema.reason import counted, span
from reports.fairness import MODEL_COLUMNS, MODEL_OPTIONS
from reports.page.figures import Figure
from reports.page.ranking import DOUBTS, LEVEL, Standing, View, standings
from reports.spoken import counts_of_missing, left_out, listed, said_number, said_setting, said_x, share_of
from reports.stats import (
    CACHE_FULL,
    HOT,
    LOADED,
    MACHINE_COLUMNS,
    MARKS,
    UNTRIED,
    case_statuses,
    marks_in,
)

# Heat takes a few percent, which turns round what is level and nothing else.
_COUNTED = DOUBTS | {HOT: "on a GPU that heat slowed down"}


def headline(
    table: pd.DataFrame,
    catalogue: Catalogue,
    figures: Sequence[Figure],
    missing: Sequence[Case] = (),
    uneven: Mapping[tuple[Any, ...], str] | None = None,
    is_part: bool = False,
) -> list[str]:
    """Up to eight sentences on the figures that answer the run's question; on the first two where none does.

    missing: the planned cases without a record. uneven: as `fairness.uneven` says it. is_part: the table has not all
    systems of its run.
    """
    answering = [figure for figure in figures if figure.headline] or figures[:2]
    views = [View(table, catalogue, figure, uneven or {}, is_part) for figure in answering]
    if unranked := _unranked(table, views):
        views = [replace(view, beside="") for view in views]
    curves = [each for each in views if not each.figure.best]
    sentences = [
        unranked,
        *map(_winners, curves[:2]),
        " ".join(filter(None, map(_claims, curves))),
        " ".join(filter(None, (_best(each) for each in views if each.figure.best))),
        _unfit(views),
        " ".join(f"{said[0].upper()}{said[1:]}." for said in left_out(table, catalogue)),
        _lost(table, len(missing), is_part),
    ]
    return [sentence for sentence in sentences if sentence]


def described(table: pd.DataFrame, catalogue: Catalogue, figure: Figure) -> str:
    """A figure in a sentence, for who does not see it: who is best, or else what is drawn."""
    view = View(table, catalogue, figure)
    if figure.lines and figure.lines[0].base_rows:
        return _ratios(view)
    found = _best(view) if figure.best else _parts(view)
    if not found and (found := "" if figure.best else _winners(view)):
        found = f"{found} {_costs(view)}".rstrip()
    if found:
        return found
    drawn = [(line, list(view.points(line))) for line in figure.lines if not line.y]
    points = [point for _, found in drawn for point in found]
    if not points:
        return f"{figure.title}: no case has a result."
    (first, *_, last) = sorted([point.x for point in points] * 2)
    (least, *_, most) = sorted([point.value for point in points] * 2)
    over = view.at(span(said_x(first), said_x(last)))
    lines = counted(sum(bool(found) for _, found in drawn), "line")
    values = span(said_number(least), said_number(most))
    words = f"{figure.title}: {lines} over {over}, {'from ' if least != most else ''}{values} {view.unit}"
    return words.rstrip() + "."


def _ratios(view: View) -> str:
    """Over what each line of ratios ranges."""
    values = view.table[view.figure.y].where(view.table["status"] == "ok")
    said = []
    for line in view.figure.lines:
        ratios = (values[row] / values[base] for row, base in zip(line.rows, line.base_rows, strict=True))
        if known := [ratio for ratio in ratios if pd.notna(ratio)]:
            said.append(f"{line.name} {span(said_number(min(known)), said_number(max(known)))}")
    return f"{view.figure.title}: {'; '.join(said) or 'no case has a result'}."


def _parts(view: View) -> str:
    """Where the parts of one computation take least together; "" for lines that are no parts of one."""
    parts = view.compared
    if len({(line.system, line.backend) for line in parts}) != 1 or len(parts) < 2 or "part" not in view.table:
        return ""
    if not all(view.rows(parts)["part"].fillna("")):
        return ""
    of = [{point.x: point.value for point in view.points(line)} for line in parts]
    sums = {x: sum(each[x] for each in of) for x in of[0] if all(x in each for each in of)}
    if not sums:
        return ""
    least = min(sums, key=lambda x: sums[x])
    labels = view.labels(parts)
    each = listed([f"{labels[line.name]} {said_number(found[least])}" for line, found in zip(parts, of, strict=True)])
    at = view.at(said_x(least))
    return f"{view.figure.title}: together they take least at {at}, {said_number(sums[least])} {view.unit} ({each})."


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
    counts = counts_of_missing(missing, table, catalogue)
    measured = set(zip(table["system"], table["backend"], strict=True))
    all_or_some = {pair: "all " if pair not in measured else "" for pair in counts}
    who = [f"{all_or_some[pair]}{count} of {name}" for pair, (name, count) in counts.items()]
    if len(who) == 1:
        who = [f"{all_or_some[pair]}of {name}" for pair, (name, _) in counts.items()]
    total = case_statuses(table).total() + len(missing)
    have = "has" if len(missing) == 1 else "have"
    return f"Unfinished: {share_of(len(missing), total, 'planned case')} {have} no record, {listed(who)}."


def _unranked(table: pd.DataFrame, views: Sequence[View]) -> str:
    """That a busy CPU ranks nothing, said once for all figures; "" where anything is ranked, or nothing compared."""
    found = [ranked for view in views for ranked in _is_ranked(view)]
    if not found or any(found):
        return ""
    measured = table[table["status"] == "ok"]
    beside = sum(LOADED in marks_in(cell) for cell in measured[MARKS])
    return f"Nothing is ranked: other programs ran beside {share_of(beside, len(measured), 'case')}."


def _is_ranked(view: View) -> Iterator[bool]:
    """Of each comparison of a figure whether other programs leave it standing."""
    if not view.figure.best:
        for standing in standings(view):
            yield len(standing.level) == 1 or not any(point.disturbed for point, _ in standing.places)
        return
    bests = [max(view.points(line), key=lambda point: point.value) for line in view.compared]
    if len(bests) > 1:
        bests.sort(key=lambda point: -point.value)
        yield not any(best.disturbed for best in bests[:2])


def _winners(view: View) -> str:
    """Who is fastest where, by how much, and where lines cross."""
    found = standings(view)
    if not found:
        return ""
    spans = [(_who(group[0], view), [each.x for each in group]) for group in _spans(found, view)]
    words = ", ".join(_span_words(who, xs, view) for who, xs in spans)
    caveat = _caveat(view, [standing.x for standing in found])
    told = [standing for standing in found if len(standing.level) == 1]
    return f"{_opening(view)} {words}{_lead(told[-1], view) if told else ''}{caveat}."


def _costs(view: View) -> str:
    """How many times as long each other setting takes than the compared one, of the lines that have both."""
    if not view.is_speed:
        return ""
    labels = view.labels(view.compared, view.held)
    usual = {(line.system, line.backend): line for line in view.compared}
    found: dict[str, list[str]] = {}
    for line in view.ranked:
        base = usual.get((line.system, line.backend))
        if base is None or base is line:
            continue
        own, usually = view.settings(line), view.settings(base)
        settings = [(name, value) for name, value in own.items() if usually.get(name) != value]
        beside = {point.x: point for point in view.points(base)}
        pairs = [(point, beside[point.x]) for point in view.points(line) if point.x in beside]
        if not settings or not pairs or any(point.off or other.off or point.disturbed for point, other in pairs):
            continue
        said = listed([said_setting(view.catalogue.axis(name), value) for name, value in settings])
        times = [point.value / other.value for point, other in pairs]
        words = _times_words(times if view.lower_is_better else [1 / each for each in times])
        xs = [point.x for point, _ in pairs]
        at = "" if xs == sorted(beside) else f" at {_places(xs, sorted(beside))}"
        found.setdefault(said, []).append(f"{labels[base.name]} takes {words}{at}")
    return " ".join(f"For {said}, {listed(own)}." for said, own in found.items())


def _times_words(times: Sequence[float]) -> str:
    least, most = min(times), max(times)
    if least > 1 - LEVEL and most < 1 + LEVEL:
        return "as long"
    return f"{span(said_number(least), said_number(most))} times as long"


def _opening(view: View) -> str:
    """What a sentence begins with: the figure's title, and what the compared lines have and others have not."""
    title = f"{view.figure.title}, of the systems shown:" if view.is_part else f"{view.figure.title}:"
    return f"{title} for {listed(view.held)}," if view.held else title


def _spans(found: list[Standing], view: View) -> Iterator[list[Standing]]:
    for _, group in groupby(found, key=lambda standing: _who(standing, view)):
        yield list(group)


def _who(standing: Standing, view: View) -> str:
    if len(standing.level) == 1:
        least = "has the least" if view.lower_is_better else "has the most"
        return f"{standing.level[0]} {'is fastest' if view.is_speed else least}"
    return f"{listed(standing.level)} are {standing.tie}"


def _span_words(who: str, xs: list[float], view: View) -> str:
    """`every`, `up to` and `from ... on` are of all x tried; where one between these is missing, each is said."""
    tried = view.tried
    if len(xs) == 1 or not _are_neighbours(xs, tried):
        return who if xs == tried else f"{who} at {listed([said_x(x) for x in xs])}"
    if xs == tried:
        axis = view.at("").strip() or view.figure.x
        return f"{who} at every {axis} tried ({said_x(xs[0])} to {said_x(xs[-1])})"
    if xs[0] == tried[0]:
        return f"{who} up to {said_x(xs[-1])}"
    if xs[-1] == tried[-1]:
        return f"{who} from {said_x(xs[0])} on"
    return f"{who} from {said_x(xs[0])} to {said_x(xs[-1])}"


def _lead(last: Standing, view: View) -> str:
    """By how much, at the largest x at which one is ahead."""
    (best, _), (after, next_who) = last.places[:2]
    at = said_x(last.x) if view.figure.x == "context" else view.at(said_x(last.x))
    own, others = (f"{said_number(point.value)} {view.unit}" for point in (best, after))
    if not view.is_speed:
        return f"; at {at} it has {own}, {next_who}, the next, has {others}"
    factor = after.value / best.value if view.lower_is_better else best.value / after.value
    return f"; at {at} it takes {own}, {said_number(factor)} times as fast as {next_who}, the next"


def doubts(rows: pd.DataFrame, y: str = "") -> list[str]:
    """How many rows are marked for what a reader must know of their numbers, in the column `y` or in any.

    Such as `3 in fewer than 6 samples`.
    """
    said = [{_COUNTED.get(mark, "") for mark in marks_in(cell, y)} for cell in rows.get(MARKS, ())]
    counts = {words: sum(words in own for own in said) for words in _COUNTED.values()}
    return [f"{count} {words}" for words, count in counts.items() if count]


def _claims(view: View) -> str:
    """What the source claims of a figure, after the figure's title."""
    judged = list(filter(None, (_judged(view, claim) for claim in view.figure.claims)))
    return f"{view.figure.title}: {' '.join([judged[0][0].lower() + judged[0][1:], *judged[1:]])}" if judged else ""


def _judged(view: View, claim: PaperClaim) -> str:
    """Whether a claim of the source holds at the x that it is about; "" where none of them has both systems."""
    own, other = view.of_system(claim.system), view.of_system(claim.other)
    due = [x for x in view.tried if x >= claim.at_least]
    common = [x for x in due if x in own and x in other]
    told = [x for x in common if not own[x].hides(other[x])]
    untold = [x for x in common if own[x].hides(other[x])]
    doubt = f" is not told at {_places(untold, due)}" if untold else ""
    said = f"The paper's “{claim.text}”"
    if not told:
        return f"{said}{doubt}." if doubt else ""
    better, worse = (other, own) if view.lower_is_better else (own, other)
    faster = {x: better[x].value / worse[x].value for x in told}
    names = [view.catalogue.system_label(system) for system in (claim.system, claim.other)]
    missed = [said_x(x) for x, factor in faster.items() if factor < 1 - claim.margin]
    range_said = span(said_number(min(faster.values())), said_number(max(faster.values())))
    whole = len(told) > 1 and told == due and claim.at_least in (0, due[0])
    met = "is exceeded here" if claim.margin and min(faster.values()) > 1 + claim.margin else "holds here"
    met += "" if whole else f" at {_places(told, due)}"
    verdict = f"does not hold here at {listed(missed)}" if missed else met
    verdict += f" and{doubt}" if doubt else ""
    doubtful = [said_x(x) for x in told if own[x].off or other[x].off]
    caveat = f" (at {listed(doubtful)} by a point that is marked as doubtful)" if doubtful else ""
    return f"{said} {verdict}: {names[0]} is {range_said} times as fast as {names[1]}{caveat}."


def _best(view: View) -> str:
    """The line with the highest best, where, and the next of those that were tried there or at a larger batch."""
    labels, reach = view.labels(view.alike, view.held), {line.name: view.reach(line) for line in view.compared}
    tops = [(max(view.points(line), key=lambda point: point.value), line.name) for line in view.compared]
    tops.sort(key=lambda top: -top[0].value)
    tops = [(top, labels[name]) for top, name in tops if reach[name] >= tops[0][0].x]
    if len(tops) < 2:
        return ""
    (best, who), (after, next_who) = tops[:2]
    at = view.at(said_x(best.x)) + (", the only one tried" if len(view.tried) == 1 else "")
    there = "" if after.x == best.x else f", at {view.at(said_x(after.x))}"
    ahead = f"{said_number(best.value / after.value)} times that of {next_who}, the next{there}"
    if best.hides(after):
        near, far = f"not told apart from {next_who}", view.not_ranked(f" against {next_who}")
        ahead = near if best.is_near(after) else far
    elif best.differs_little(after):
        ahead = f"level with {next_who}"
    return f"{_opening(view)} {who} reaches {said_number(best.value)} {view.unit} at {at}, {ahead}{_caveat(view, [])}."


def _unfit(answering: Iterable[View]) -> str:
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


def _kept_words(view: View, rows: pd.DataFrame, kept: pd.Series) -> str:
    """Where the kept rows of a line are, and which others were not tried: all of them, or those in between."""
    x = rows[view.figure.x]
    xs, every, untried = (sorted(each.unique()) for each in (x[kept], x, x[rows["status"].isin(UNTRIED)]))
    said, between = view.at(_places(xs, every)), [each for each in untried if xs[0] < each < xs[-1]]
    if untried and len(xs) + len(untried) == len(every):
        return f"{said}, the others not tried"
    return f"{said}, with {listed([said_x(each) for each in between])} not tried" if between else said


def _by_where(found: dict[str, dict[str, list[str]]]) -> str:
    """Who is where in the first two figures; how many more figures there are."""
    said = [
        f"{', '.join(f'{listed(who)} {where}' for where, who in places.items())} ({title})"
        for title, places in found.items()
    ]
    more = (
        [f"and in {len(said) - 2} more figures" if len(said) > 3 else "and in another figure"] if len(said) > 2 else []
    )
    return "; ".join([*said[:2], *more])


def _lost(table: pd.DataFrame, missing: int, is_part: bool) -> str:
    statuses = case_statuses(table)
    counts = {status: count for status, count in statuses.items() if status != "ok"}
    counts |= {"without a record": missing} if missing else {}
    cases = f"{statuses.total() + missing} cases{' shown' if is_part else ''}"
    if not counts:
        return f"Every one of the {cases} has a result."
    said = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"{sum(counts.values())} of {cases} have no result ({said})."


def _caveat(view: View, xs: Sequence[float]) -> str:
    """What makes the comparison of a sentence, at these x, less than it seems."""
    rows = view.rows(view.compared)
    rows = rows[rows["status"] == "ok"]
    several = [name for name in MACHINE_COLUMNS if rows[name].nunique() > 1]
    said = ["not all from one machine and commit"] if several else []
    if several == ["device_id"]:
        systems = counted(rows["system"].nunique(), "system")
        said = [f"{systems} on {rows['device_id'].nunique()} GPUs of one model"]
    said += _uneven(view, rows)
    if doubtful := doubts(rows, view.figure.y):
        said.append(f"of {counted(len(rows), 'point')}, {', '.join(doubtful)}")
    said += _absent(view, xs)
    return f" ({'; '.join(said)})" if said else ""


def _uneven(view: View, rows: pd.DataFrame) -> Iterator[str]:
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
        yield f"{words}: {listed(labels) if len(labels) <= 3 else f'{len(labels)} systems'}"


def _absent(view: View, xs: Sequence[float]) -> list[str]:
    """Which lines have no result at all, or none at some of these x; of more than three how many."""
    labels, found = view.labels(view.alike, view.held), dict[str, list[str]]()
    for line in view.alike:
        own = {point.x for point in view.points(line)}
        gone = [x for x in xs if x not in own]
        if gone or not own:
            found.setdefault(_gone_words(gone, xs) if own else "", []).append(labels[line.name])
    named = {where: listed(who) if len(who) <= 3 else f"{len(who)} lines" for where, who in found.items()}
    return [f"{who} {'has' if len(found[where]) == 1 else 'have'} no result{where}" for where, who in named.items()]


def _gone_words(gone: Sequence[float], xs: Sequence[float]) -> str:
    brief = len(gone) <= 3 or _are_neighbours(gone, xs)
    return f" at {_places(gone, xs)}" if brief else f" at {len(gone)} of these {len(xs)}"


def _places(xs: Sequence[float], among: Sequence[float]) -> str:
    """These of the x in words: their span where no other lies between them, else each."""
    said = [said_x(x) for x in xs]
    return span(said[0], said[-1]) if _are_neighbours(xs, among) else listed(said)


def _are_neighbours(xs: Sequence[float], among: Sequence[float]) -> bool:
    return list(xs) == [x for x in among if xs[0] <= x <= xs[-1]]
