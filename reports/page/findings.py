"""Sentences about the results of a run: one for each figure and a few for the whole run."""

from collections.abc import Iterable, Sequence
from itertools import chain, combinations, groupby, takewhile

import pandas as pd

from harness.measure.interval import FEWEST
from harness.quality import ANY_UNSTEADY, FEW_SAMPLES, HOT, LOADED
from harness.schema.catalogue import Catalogue, PaperClaim
from harness.schema.reason import format_number, span
from reports.page.ranking import TIES, Standing, View, best_standing, standings
from reports.stats import FLAGS, flags_in
from reports.words import SEPARATOR, format_x, left_out, listed, share_of

_FLAG_WORDS = {
    FEW_SAMPLES: f"with fewer than {FEWEST} samples",
    LOADED: "contended",
    **dict.fromkeys(ANY_UNSTEADY, "unsteady"),
    HOT: "thermally throttled",
}
_MAX_CHARACTERS = 130  # of a ranking in words; a longer ranking names only the most frequent winner


def headline(table: pd.DataFrame, catalogue: Catalogue, views: Sequence[View]) -> list[str]:
    """Return sentences on the paper's claims, out-of-memory cases and missing backends."""
    primary = [view for view in views if view.figure.primary] or views[:2]
    claims = chain.from_iterable((_checked(view, claim) for claim in view.figure.claims) for view in primary)
    missing = [f"{text[0].upper()}{text[1:]}." for text in left_out(table, catalogue)]
    return list(filter(None, [*claims, _out_of_memory(primary), *missing]))


def finding(view: View) -> str:
    """Return a sentence on a figure's results, such as which line is fastest at which x."""
    figure = view.figure
    if figure.lines and figure.lines[0].base_rows:
        return _ratios(view)
    if words := _parts(view) if view.is_parts else _best(view) if figure.best else _winners(view):
        shared = listed(view.shared_settings)
        return f"{shared[:1].upper()}{shared[1:]}: {words}." if shared else f"{words}."
    drawn = [line for line in figure.lines if not line.y and view.points(line)]
    points = [point for line in drawn for point in view.points(line)]
    if not points:
        return "No case has a result."
    xs = sorted(point.x for point in points)
    who = next(iter(view.labels(drawn).values())) if len(drawn) == 1 else f"{len(drawn)} lines"
    values = f"{who}: {_span(point.value for point in points)} {view.metric.unit}".rstrip()
    return f"{values} over {view.at(span(format_x(xs[0]), format_x(xs[-1])))}."


def crossings(view: View) -> list[str]:
    """State where two lines cross, for each pair whose order by speed clearly swaps once as x grows."""
    labels = view.labels(view.comparable, view.shared_settings)
    found = []
    for pair in combinations(view.compared, 2) if view.is_speed and not view.is_parts else ():
        one, other = ({point.x: point for point in view.points(line)} for line in pair)
        common = sorted(one.keys() & other.keys())
        undecided = {x for x in common if one[x].is_equal(other[x]) or one[x].is_indistinguishable(other[x])}
        leads = {x: None if x in undecided else (one[x].value < other[x].value) == view.lower_is_better for x in common}
        runs = [(lead, list(xs)) for lead, xs in groupby(common, key=leads.__getitem__)]
        order = [lead for lead, _ in runs]
        # A pair whose order is open at the smallest or the largest common x gets no sentence.
        if order in ([True, False], [False, True], [True, None, False], [False, None, True]):
            (lead, before), (_, after) = runs[0], runs[-1]
            first, second = (labels[line.name] for line in (pair if lead else pair[::-1]))
            until = f"{'up to' if len(before) > 1 else 'at'} {view.at(format_x(before[-1]))}"
            found.append(f"{first} is faster than {second} {until} and slower from {format_x(after[0])} on.")
    return found


def _ratios(view: View) -> str:
    values = view.table[view.figure.y].where(view.table["status"] == "ok")
    pairs = [pair for line in view.figure.lines for pair in zip(line.rows, line.base_rows, strict=True)]
    ratios = [ratio for row, base in pairs if pd.notna(ratio := values[row] / values[base])]
    return f"Primal takes {_span(ratios)} times as long as dual." if ratios else "No case has a result."


def _span(values: Iterable[float]) -> str:
    found = sorted(values)
    return span(format_number(found[0]), format_number(found[-1]))


def small_models(table: pd.DataFrame, kinds: Iterable[str]) -> str:
    """Return the notice that small models ran on CPUs; "" unless all device `kinds` are "cpu"."""
    if set(kinds) != {"cpu"}:
        return ""
    sizes = ", ".join(sorted(table["size"].unique()))
    devices = " and ".join(device for device in table["device"].unique() if device) or "a CPU"
    return f"Small models ({sizes}) on a CPU, {devices}: these are not the paper's figures, which need a GPU."


def unfinished(table: pd.DataFrame, missing: int) -> str:
    """Return the notice that `missing` planned cases have no record; "" for none."""
    total = len(table) + missing
    have = "has" if missing == 1 else "have"
    return f"Unfinished: {share_of(missing, total, 'planned case')} {have} no record." if missing else ""


def _parts(view: View) -> str:
    parts = [{point.x: point.value for point in view.points(line)} for line in view.compared]
    totals = {x: sum(part[x] for part in parts) for x in set.intersection(*map(set, parts))} if parts else {}
    if not totals:
        return ""
    names = listed([str(view.table.loc[line.rows[0], "part"]) for line in view.compared])
    best = min(totals, key=totals.__getitem__)
    return (
        f"The total of {names} is least at {view.at(format_x(best))}: {format_number(totals[best])} {view.metric.unit}"
    )


def _winners(view: View) -> str:
    found = standings(view)
    if not found:
        return ""
    groups: dict[str, list[Standing]] = {}
    for standing in found:
        groups.setdefault(_who(standing, view), []).append(standing)
    words = {who: f"{who}{_where([each.x for each in own], view)}" for who, own in groups.items()}
    if len("; ".join(words.values())) > _MAX_CHARACTERS:
        most = max(groups, key=lambda who: len(groups[who]))
        words = {most: f"{most} at {len(groups[most])} of {len(found)} values of {view.axis}"}
    ahead = [standing for who in words for standing in groups[who] if len(standing.tied) == 1]
    if ahead:
        last = max(ahead, key=lambda standing: standing.x)
        words[_who(last, view)] += _lead(last, view)
    return "; ".join(words.values())


def _who(standing: Standing, view: View) -> str:
    if len(standing.tied) == 1:
        least = "has the least" if view.lower_is_better else "has the most"
        return f"{standing.tied[0]} {'is fastest' if view.is_speed else least}"
    if len(standing.tied) > 3:
        return f"{len(standing.tied)} lines are {standing.tie}"
    names = [label.split(SEPARATOR) for label in standing.tied]
    shared = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*names, strict=False))]
    rests = [SEPARATOR.join(name[len(shared) :]) for name in names]
    return f"{SEPARATOR.join([*shared, ''])}{listed(rests)} are {standing.tie}"


def _where(xs: list[float], view: View) -> str:
    if xs == view.tried_x:
        return f" at every {view.axis}" if len(xs) > 1 else ""
    return f" at {view.at(_among(xs, view.tried_x))}"


def _lead(last: Standing, view: View) -> str:
    (best, _), (after, next_who) = last.ranks[:2]
    at = view.at(format_x(last.x)).removeprefix(f"{view.axis} " if len(view.tried_x) > 1 else "")
    if not view.is_speed:
        value = f"{format_number(best.value)} {view.metric.unit}".rstrip()
        return f": {value} at {at}, {next_who} {format_number(after.value)}"
    factor = after.value / best.value if view.lower_is_better else best.value / after.value
    return f", {format_number(factor)} times as fast as {next_who} at {at}"


def _best(view: View) -> str:
    found = best_standing(view)
    if not found:
        return ""
    (best, who), (after, next_who) = found.ranks[:2]
    ahead = f"{format_number(best.value / after.value)} times {next_who}"
    if next_who in found.tied:
        ahead = f"{found.tie} {TIES[found.tie]} {next_who}"
    return f"{who} reaches {format_number(best.value)} {view.metric.unit} at {view.at(format_x(best.x))}, {ahead}"


def flag_counts(rows: pd.DataFrame) -> list[str]:
    """Count the rows per kind of flag; return texts such as `3 unsteady` for counts above 0."""
    found = [{_FLAG_WORDS[flag] for flag in flags_in(cell) if flag in _FLAG_WORDS} for cell in rows.get(FLAGS, ())]
    counts = {words: sum(words in own for own in found) for words in _FLAG_WORDS.values()}
    return [f"{count} {words}" for words, count in counts.items() if count]


def _checked(view: View, claim: PaperClaim) -> str:
    """State whether a claim holds; "" if no x >= `claim.at_least` has results of both systems."""
    own, other = view.of_system(claim.system), view.of_system(claim.other)
    due = [x for x in view.tried_x if x >= claim.at_least]
    common = [x for x in due if x in own and x in other]
    undecided = [x for x in common if own[x].is_indistinguishable(other[x])]
    clear = [x for x in common if x not in undecided]
    paper = f"In {view.figure.phase}, the paper's “{claim.text}”"
    if not clear:
        return f"{paper} is not decided at {_among(common, due)}." if common else ""
    better, worse = (other, own) if view.lower_is_better else (own, other)
    faster = {x: better[x].value / worse[x].value for x in clear}
    missed = [x for x, factor in faster.items() if factor < 1 - claim.margin]
    result = "is exceeded" if claim.margin and min(faster.values()) > 1 + claim.margin else "holds"
    result = f"does not hold at {_among(missed, due)}" if missed else f"{result} at {_among(clear, due)}"
    result += f" and is not decided at {_among(undecided, due)}" if undecided else ""
    names = [view.catalogue.system_label(system) for system in (claim.system, claim.other)]
    return f"{paper} {result}: {names[0]} is {_span(faster.values())} times as fast as {names[1]}."


def _out_of_memory(views: Iterable[View]) -> str:
    found: dict[str, list[str]] = {}
    for view in views:
        labels = view.labels(view.ranked)
        for line in view.ranked:
            rows = view.rows([line])
            oom = rows[view.figure.x][rows["status"] == "oom"]
            if len(oom):
                at = f"{view.figure.title[:1].lower()}{view.figure.title[1:]} at {view.at(format_x(oom.min()))}"
                found.setdefault(at, []).append(labels[line.name])
    words = ", ".join(f"{listed(names)} ({where})" for where, names in found.items())
    return f"Did not fit in memory: {words}." if words else ""


def _among(xs: Sequence[float], tried: Sequence[float]) -> str:
    words = [format_x(x) for x in xs]
    are_neighbours = list(xs) == [x for x in tried if xs[0] <= x <= xs[-1]]
    return span(words[0], words[-1]) if are_neighbours else listed(words)
