"""Show a comparison as text, Markdown, JSON or an HTML page."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from markupsafe import Markup

from harness.schema.reason import counted, printable, span
from harness.schema.record import finite
from reports import grid
from reports.compare.comparison import BETWEEN_RUNS, ELSEWHERE, STORED_BAR, Comparison, Row
from reports.compare.judge import BAR, SAME

COLUMNS = ("verdict", "B/A", "95% interval", "A ms", "B ms", "case", "notes")
STORED_MEANING = (
    f"Of two stored runs of the same packages 95% of the cases are within {BETWEEN_RUNS['gpu']:.0%} on one GPU, within "
    f"{BETWEEN_RUNS['gpus']:.0%} on two of a kind and within {BETWEEN_RUNS['cpu']:.0%} on a CPU, and some that the "
    f"host bounds are further apart: nothing is judged below {STORED_BAR:.0%}. "
    "`ttt-bench ab` measures two commits in turns and judges from 1%."
)
ELSEWHERE_MEANING = "Cases on two devices have a ratio and no verdict."
NUMERIC = (False, True, True, True, True, False, False)
NEAR = (0.01, 0.02, 0.03)  # the README's table of two runs counts cases within these
NAMED_CASES = 12  # cases without a comparison that are named one by one
BEYOND = 0.05  # the share of points that a confirmed run may have beyond: as many as two runs of the same packages have
NAMED_GROUPS = 3  # groups of cases that the answer names
SCALE = 0.02  # the least that the axis of the page shows to either side
WIDTH = 160  # of its plots, in pixels


def answer(comparison: Comparison) -> str:
    """The comparison in one or two sentences."""
    rows = comparison.rows
    if not rows:
        return "Nothing was compared: no case has a result in both runs."
    elsewhere = {row.judged.verdict for row in rows if row.judged.verdict in ELSEWHERE}
    if elsewhere and all(row.judged.verdict in elsewhere for row in rows):
        return _ratios(rows, " or ".join(sorted(elsewhere)))
    if comparison.interleaved:
        return f"{', '.join(f'{count} {verdict}' for verdict, count in comparison.counts.items())}."
    beyond = [row for row in rows if row.apart > comparison.near]
    judged = comparison.counts.keys() & {"slower", "faster", "lost", *ELSEWHERE}
    word = "Confirmed" if len(beyond) <= BEYOND * len(rows) else "Not confirmed"
    within = f"{word}: {len(rows) - len(beyond)} of {counted(len(rows), 'point')} within {comparison.near:.0%}."
    said = [f"{count} {verdict}" for verdict, count in comparison.counts.items() if verdict in judged]
    return " ".join([within, *([f"{', '.join(said)}."] if said else []), *_beyond(beyond)])


def _ratios(rows: Sequence[Row], where: str) -> str:
    ratios = sorted(row.judged.ratio for row in rows)
    times = span(f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}")
    middle = f", {median(ratios):.2f} in the median" if len(rows) > 1 else ""
    points = counted(len(rows), "point")
    return f"{where[0].upper()}{where[1:]}: B takes {times} times as long as A{middle}, over {points}."


def _beyond(rows: Sequence[Row]) -> list[str]:
    """Which systems are beyond, and the first note of each."""
    if not rows:
        return []
    groups = Counter((row.system, row.notes[0] if row.notes else "") for row in rows).most_common()
    said = [f"{count} of {system}{f' ({note})' if note else ''}" for (system, note), count in groups[:NAMED_GROUPS]]
    left = sum(count for _, count in groups[NAMED_GROUPS:])
    return [f"Beyond: {', '.join([*said, *([f'{left} others'] if left else [])])}."]


def text(comparison: Comparison) -> str:
    """Lines for a terminal or a log, one for each case."""
    rows = [_cells(row) for row in comparison.rows]
    table = grid.text(COLUMNS, rows, NUMERIC).rstrip("\n") if rows else ""
    parts = [[answer(comparison)], _opening(comparison), [table], _without(comparison), _closing(comparison)]
    said = ["\n".join(part if part == [table] else map(printable, part)) for part in parts]
    return "\n\n".join(filter(None, said)) + "\n"


def markdown(comparison: Comparison) -> str:
    """The same as Markdown, for a pull request."""
    rows = [[grid.escaped(cell) for cell in _cells(row)] for row in comparison.rows]
    listed = [f"- {grid.escaped(line)}" for line in (*_opening(comparison), *_without(comparison))]
    closing = [grid.escaped(line) for line in _closing(comparison)]
    table = grid.markdown(COLUMNS, rows, NUMERIC).rstrip("\n") if rows else ""
    parts = [grid.escaped(answer(comparison)), "\n".join(listed), table, "\n".join(closing)]
    return "\n\n".join(filter(None, parts)) + "\n"


def to_json(comparison: Comparison) -> str:
    """A JSON object of everything, unrounded; ratios are B/A, and an interval without an end ends in null."""
    rows = [_flat(row) for row in comparison.rows]
    values = {
        "tool": "ttt-bench",
        "answer": answer(comparison),
        "a": asdict(comparison.a),
        "b": asdict(comparison.b),
        "interleaved": comparison.interleaved,
        "fail_on": comparison.fail_on,
        "regressions": comparison.regressions,
        "verdicts": comparison.counts,
        "differences": [asdict(each) for each in comparison.differences],
        "cases": rows,
        "without_comparison": [asdict(each) for each in comparison.missing],
    }
    return json.dumps(finite(values), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def page(comparison: Comparison, profiles: str = "") -> str:
    """One HTML page with everything in it. profiles: the section on what both profiled."""
    from reports.page.embedding import script_hash
    from reports.resources import environment, source

    program = script()
    return (
        environment("reports.compare")
        .get_template("compare.html.j2")
        .render(
            style=Markup(source("reports.page", "style.css") + source("reports.profiles", "section.css")),
            comparison=comparison,
            body=body(comparison) + profiles,
            program=Markup(program),
            script_hash=script_hash(program),
        )
    )


def script() -> str:
    """The program of a page with the `body` of a comparison."""
    from reports.resources import source

    return source("reports.compare", "table.js")


def body(comparison: Comparison, links: Sequence[str] = ("", "")) -> Markup:
    """The page's content; links: the addresses of the two runs, where they have pages."""
    from reports.resources import environment

    reach = _reach(comparison.rows)
    template = environment("reports.compare", tidy=True).get_template("body.html.j2")
    return Markup(
        template.render(
            comparison=comparison,
            answer=answer(comparison),
            columns=COLUMNS,
            numeric=NUMERIC,
            rows=[(row, _cells(row), _plot(row, reach)) for row in comparison.rows],
            closing=_closing(comparison),
            without=_without(comparison),
            sides=list(zip("AB", (comparison.a, comparison.b), links, strict=True)),
            width=WIDTH,
            ends=f"{1 - reach:.2f} to {1 + reach:.2f}",
        )
    )


def _opening(comparison: Comparison) -> list[str]:
    """What differs, before any number."""
    sides = [
        f"{letter}: {side.name}, commit {side.commit}, on {side.device}{f', {side.measured}' if side.measured else ''}"
        for letter, side in (("A", comparison.a), ("B", comparison.b))
    ]
    differing = [f"differs: {each.sentence}" for each in comparison.differences]
    return [*sides, *(differing or ["differs: nothing that was recorded"])]


def _without(comparison: Comparison) -> list[str]:
    """Each reason once, with the cases that it took from the comparison."""
    reasons: dict[str, list[str]] = {}
    for each in comparison.missing:
        reasons.setdefault(each.reason, []).append(each.label)
    return [f"{reason}: {_named(labels)}" for reason, labels in reasons.items()]


def _named(labels: list[str]) -> str:
    """The cases, or where they are many how many of each system; --json has all."""
    if len(labels) <= NAMED_CASES:
        return ", ".join(labels)
    systems = Counter(label.partition(" ")[0] for label in labels)
    return f"{len(labels)} cases ({', '.join(f'{count} {system}' for system, count in systems.items())})"


def _closing(comparison: Comparison) -> list[str]:
    """The verdicts counted, and what they mean."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison.counts.items())
    lines = [f"{counts}." if counts else "No case has a result in both."]
    if comparison.interleaved:
        lines.append(
            f"Measured in turns, a fresh process a round and side; B/A is the geometric mean of the rounds. "
            f"Slower and faster are by more than {BAR:.0%}, same is within {SAME:.0%}."
        )
    else:
        verdicts = {row.judged.verdict for row in comparison.rows}
        lines += [ELSEWHERE_MEANING] if verdicts & {*ELSEWHERE} else []
        lines += [STORED_MEANING] if verdicts - {*ELSEWHERE} else []
    if comparison.regressions:
        cases = counted(comparison.regressions, "case")
        beyond = "" if comparison.interleaved else ", and by more than two runs differ by themselves"
        lines.append(f"{cases} slower by more than {comparison.fail_on * 100:.3g}%{beyond}, or lost.")
    return lines


def _cells(row: Row) -> list[str]:
    judged = row.judged
    return [
        judged.verdict,
        f"{judged.ratio:.3f}",
        f"{judged.low:.3f} to {judged.high:.3f}",
        f"{row.a_ms:.4g}",
        f"{row.b_ms:.4g}",
        row.label,
        "; ".join(row.notes),
    ]


def _flat(row: Row) -> dict[str, Any]:
    """A row with its verdict on one level."""
    values = asdict(row)
    return values | values.pop("judged")


def _reach(rows: Sequence[Row]) -> float:
    """How far from 1 the plots go: every ratio and nine of ten intervals lie within, but none beyond twice as slow."""
    ends = sorted(max(row.judged.high - 1, 1 - row.judged.low) for row in rows)
    farthest = max((abs(row.judged.ratio - 1) for row in rows), default=0.0)
    return min(1.0, max(SCALE, 1.05 * farthest, ends[int(0.9 * (len(ends) - 1))])) if ends else SCALE


def _plot(row: Row, reach: float) -> dict[str, float]:
    """Places in pixels of a row's ratio and its interval, cut where they leave the axis."""
    places = {"low": row.judged.low, "ratio": row.judged.ratio, "high": row.judged.high}
    return {name: round(WIDTH / 2 * (1 + min(1.0, max(-1.0, (at - 1) / reach))), 1) for name, at in places.items()}
