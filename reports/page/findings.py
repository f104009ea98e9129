"""What did the run find? A sentence for each figure and a few for the run, computed from the records."""

from collections.abc import Iterable, Sequence
from itertools import chain, groupby

import pandas as pd

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue, PaperClaim
from harness.schema.reason import span
from reports.page.figures import Figure
from reports.page.ranking import DOUBTS, Standing, View, standings
from reports.stats import HOT, LOADED, MARKS, case_statuses, marks_in
from reports.words import counts_of_missing, left_out, listed, said_number, said_x, share_of

# Heat takes a few percent, which turns round what is level and nothing else.
_COUNTED = DOUBTS | {HOT: "on a GPU that heat slowed down"}
_MOST_LETTERS = 110  # of a sentence that says who is fastest where


def headline(table: pd.DataFrame, catalogue: Catalogue, figures: Sequence[Figure]) -> list[str]:
    """What the sentences of figures do not say: the paper's claims, what ran out of memory, missing baselines."""
    views = _answering(table, catalogue, figures)
    claims = chain.from_iterable((_judged(view, claim) for claim in view.figure.claims) for view in views)
    gone = [f"{said[0].upper()}{said[1:]}." for said in left_out(table, catalogue)]
    return list(filter(None, [*claims, _unfit(views), *gone]))


def _answering(table: pd.DataFrame, catalogue: Catalogue, figures: Sequence[Figure]) -> list[View]:
    """The figures that answer the run's question, or the first two."""
    answering = [figure for figure in figures if figure.headline] or figures[:2]
    return [View(table, catalogue, figure) for figure in answering]


def finding(table: pd.DataFrame, catalogue: Catalogue, figure: Figure) -> str:
    """A figure in one sentence: who is ahead and by how much, or else the range of its values."""
    view = View(table, catalogue, figure)
    if figure.lines and figure.lines[0].base_rows:
        return _ratios(view)
    if found := _ranked(view):
        return found
    drawn = [(line, list(view.points(line))) for line in figure.lines if not line.y]
    points = [point for _, found in drawn for point in found]
    if not points:
        return "No case has a result."
    names = view.labels([line for line, found in drawn if found])
    values = _span(point.value for point in points)
    xs = sorted(point.x for point in points)
    who = next(iter(names.values())) if len(names) == 1 else f"{len(names)} lines"
    return f"{who}: {values} {view.unit}".rstrip() + f" over {view.at(span(said_x(xs[0]), said_x(xs[-1])))}."


def _ratios(view: View) -> str:
    values = view.table[view.figure.y].where(view.table["status"] == "ok")
    pairs = [pair for line in view.figure.lines for pair in zip(line.rows, line.base_rows, strict=True)]
    ratios = [ratio for row, base in pairs if pd.notna(ratio := values[row] / values[base])]
    return f"Primal takes {_span(ratios)} times as long as dual." if ratios else "No case has a result."


def _span(values: Iterable[float]) -> str:
    found = sorted(values)
    return span(said_number(found[0]), said_number(found[-1]))


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


def unranked(table: pd.DataFrame, catalogue: Catalogue, figures: Sequence[Figure]) -> str:
    """That a busy CPU ranks nothing; "" where anything is ranked, or nothing compared."""
    views = _answering(table, catalogue, figures)
    found = [standing for view in views for standing in (standings(view) if not view.figure.best else _best(view))]
    if not found or any(len(each.level) == 1 or not each.disturbed for each in found):
        return ""
    measured = table[table["status"] == "ok"]
    beside = sum(LOADED in marks_in(cell) for cell in measured[MARKS])
    return f"Nothing is ranked: other programs ran beside {share_of(beside, len(measured), 'case')}."


def _ranked(view: View) -> str:
    """Who is ahead where and by how much; "" where no two lines are compared."""
    if view.is_parts:
        return ""
    words = _best_words(view) if view.figure.best else _winner_words(view)
    held = listed(view.held)
    return f"{held[:1].upper()}{held[1:]}: {words}." if words and held else f"{words}." if words else ""


def _winner_words(view: View) -> str:
    found = standings(view)
    if not found:
        return ""
    spans = [(who, [each.x for each in group]) for who, group in groupby(found, key=lambda each: _who(each, view))]
    words = ", ".join(_span_words(who, xs, view) for who, xs in spans)
    if len(words) > _MOST_LETTERS:
        most = {who: sum(len(xs) for other, xs in spans if other == who) for who, _ in spans}
        (who, count), *_ = sorted(most.items(), key=lambda each: -each[1])
        words = f"{who} at {count} of {len(found)} values of {view.axis}"
    told = [standing for standing in found if len(standing.level) == 1]
    return f"{words}{_lead(told[-1], view) if told else ''}"


def _who(standing: Standing, view: View) -> str:
    if len(standing.level) == 1:
        least = "has the least" if view.lower_is_better else "has the most"
        return f"{standing.level[0]} {'is fastest' if view.is_speed else least}"
    names = listed(standing.level) if len(standing.level) <= 3 else f"{len(standing.level)} lines"
    return f"{names} are {standing.tie}"


def _span_words(who: str, xs: list[float], view: View) -> str:
    """`every`, `up to` and `from` are of all x tried; where one between these is missing, each is said."""
    tried = view.tried
    if xs == tried:
        return f"{who} at every {view.axis}" if len(xs) > 1 else who
    if len(xs) == 1 or not _are_neighbours(xs, tried):
        return f"{who} at {listed([said_x(x) for x in xs])}"
    if xs[0] == tried[0]:
        return f"{who} up to {said_x(xs[-1])}"
    return f"{who} from {said_x(xs[0])}" + ("" if xs[-1] == tried[-1] else f" to {said_x(xs[-1])}")


def _lead(last: Standing, view: View) -> str:
    """By how much, at the largest x at which one is ahead."""
    (best, _), (after, next_who) = last.places[:2]
    at = said_x(last.x) if len(view.tried) > 1 else view.at(said_x(last.x))
    if not view.is_speed:
        return f": {said_number(best.value)} {view.unit} at {at}, {next_who} {said_number(after.value)}"
    factor = after.value / best.value if view.lower_is_better else best.value / after.value
    return f", {said_number(factor)} times as fast as {next_who} at {at}"


def _best(view: View) -> list[Standing]:
    """The lines by their best value, of those that were tried at the best one's x or at a larger; none for one line."""
    labels = view.labels(view.alike, view.held)
    tops = [(max(view.points(line), key=lambda point: point.value), line) for line in view.compared]
    tops.sort(key=lambda top: -top[0].value)
    tops = [top for top in tops if view.reach(top[1]) >= tops[0][0].x]
    places = [(point, labels[line.name]) for point, line in tops]
    return [view.standing(places[0][0].x, places)] if len(places) > 1 else []


def _best_words(view: View) -> str:
    found = _best(view)
    if not found:
        return ""
    (best, who), (after, next_who) = found[0].places[:2]
    ahead = f"{said_number(best.value / after.value)} times {next_who}"
    if next_who in found[0].level:
        ahead = f"{found[0].tie}{' with' if found[0].tie == 'level' else ' from'} {next_who}"
    return f"{who} reaches {said_number(best.value)} {view.unit} at {view.at(said_x(best.x))}, {ahead}"


def doubts(rows: pd.DataFrame, y: str = "") -> list[str]:
    """How many rows are marked for what a reader must know of their numbers, in the column `y` or in any.

    Such as `3 in fewer than 6 samples`.
    """
    said = [{_COUNTED.get(mark, "") for mark in marks_in(cell, y)} for cell in rows.get(MARKS, ())]
    counts = {words: sum(words in own for own in said) for words in _COUNTED.values()}
    return [f"{count} {words}" for words, count in counts.items() if count]


def _judged(view: View, claim: PaperClaim) -> str:
    """Whether a claim of the source holds at the x that it is about; "" where none of them has both systems."""
    own, other = view.of_system(claim.system), view.of_system(claim.other)
    due = [x for x in view.tried if x >= claim.at_least]
    common = [x for x in due if x in own and x in other]
    told = [x for x in common if not own[x].hides(other[x])]
    said = f"The paper's “{claim.text}”"
    if not told:
        return f"{said} is not told at {_places(common, due)}." if common else ""
    better, worse = (other, own) if view.lower_is_better else (own, other)
    faster = {x: better[x].value / worse[x].value for x in told}
    names = [view.catalogue.system_label(system) for system in (claim.system, claim.other)]
    missed = [said_x(x) for x, factor in faster.items() if factor < 1 - claim.margin]
    verdict = "is exceeded here" if claim.margin and min(faster.values()) > 1 + claim.margin else "holds here"
    if missed:
        verdict = f"does not hold here at {listed(missed)}"
    elif not (len(told) > 1 and told == due and claim.at_least in (0, due[0])):
        verdict += f" at {_places(told, due)}"
    if len(told) < len(common):
        verdict += f" and is not told at {_places([x for x in common if x not in told], due)}"
    doubtful = " (by points that are flagged)" if any(own[x].off or other[x].off for x in told) else ""
    return f"{said} {verdict}: {names[0]} is {_span(faster.values())} times as fast as {names[1]}{doubtful}."


def _unfit(answering: Iterable[View]) -> str:
    """The compared lines that ran out of memory, each at the smallest x."""
    found: dict[str, list[str]] = {}
    for view in answering:
        labels = view.labels(view.ranked)
        for line in view.ranked:
            rows = view.rows([line])
            lost = rows[view.figure.x][rows["status"] == "oom"]
            if len(lost):
                at = f"{view.figure.title[:1].lower()}{view.figure.title[1:]} at {view.at(said_x(lost.min()))}"
                found.setdefault(at, []).append(labels[line.name])
    said = ", ".join(f"{listed(who)} ({where})" for where, who in found.items())
    return f"Did not fit in memory: {said}." if said else ""


def _places(xs: Sequence[float], among: Sequence[float]) -> str:
    """These of the x in words: their span where no other lies between them, else each."""
    said = [said_x(x) for x in xs]
    return span(said[0], said[-1]) if _are_neighbours(xs, among) else listed(said)


def _are_neighbours(xs: Sequence[float], among: Sequence[float]) -> bool:
    return list(xs) == [x for x in among if xs[0] <= x <= xs[-1]]
