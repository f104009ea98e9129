"""Show a comparison as text, Markdown, JSON or an HTML page."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from harness.schema.reason import counted, printable
from harness.schema.record import finite
from reports.compare.comparison import BETWEEN_RUNS, STORED_BAR, Comparison, Row
from reports.compare.judge import BAR, SAME

COLUMNS = ("verdict", "B/A", "95% interval", "A ms", "B ms", "case", "notes")
STORED_MEANING = (
    f"Of two stored runs of one commit 95% of the cases are within {BETWEEN_RUNS['gpu']:.0%} on one GPU, within "
    f"{BETWEEN_RUNS['gpus']:.0%} on two of a kind and within {BETWEEN_RUNS['cpu']:.0%} on a CPU, and some that the "
    f"host bounds are further apart: nothing is judged below {STORED_BAR:.0%}. "
    "`ttt-bench ab` measures two commits in turns and judges from 1%."
)
_NUMBERS = (1, 2, 3, 4)
NEAR = (0.01, 0.02, 0.03)  # within which cases of two stored runs are counted
NAMED_CASES = 12  # cases without a comparison that are named one by one
SCALE = 0.02  # the least that the axis of the page shows to either side
WIDTH = 160  # of its plots, in pixels


def text(comparison: Comparison) -> str:
    """Lines for a terminal or a log, one for each case."""
    rows = [[printable(cell) for cell in row] for row in (COLUMNS, *map(_cells, comparison.rows))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(
            cell.rjust(width) if place in _NUMBERS else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    parts = [_opening(comparison), table if comparison.rows else [], _without(comparison), _closing(comparison)]
    return "\n\n".join("\n".join(map(printable, part)) for part in parts if part) + "\n"


def markdown(comparison: Comparison) -> str:
    """The same as Markdown, for a pull request."""
    right = ["---:" if place in _NUMBERS else "---" for place in range(len(COLUMNS))]
    table = [_markdown_row(COLUMNS), _markdown_row(right), *(_markdown_row(_cells(row)) for row in comparison.rows)]
    listed = [f"- {_escaped(line)}" for line in (*_opening(comparison), *_without(comparison))]
    parts = [listed, table if comparison.rows else [], [_escaped(line) for line in _closing(comparison)]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def to_json(comparison: Comparison) -> str:
    """A JSON object of everything, unrounded; ratios are B/A, and an interval without an end ends in null."""
    rows = [_flat(row) for row in comparison.rows]
    values = {
        "tool": "ttt-bench",
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


def page(comparison: Comparison) -> str:
    """One HTML page with everything in it."""
    from reports.resources import environment, source

    reach = _reach(comparison.rows)
    return (
        environment("reports.compare")
        .get_template("compare.html.j2")
        .render(
            style=source("reports.page", "style.css"),
            comparison=comparison,
            columns=COLUMNS,
            rows=[(row, _cells(row), _plot(row, reach)) for row in comparison.rows],
            closing=_closing(comparison),
            without=_without(comparison),
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
    lines = [counts or "No case has a result in both."]
    if comparison.interleaved:
        lines.append(
            f"Measured in turns, a fresh process a round and side; B/A is the geometric mean of the rounds. "
            f"Slower and faster are by more than {BAR:.0%}, same is within {SAME:.0%}."
        )
    else:
        lines += [*_apart(comparison.rows), STORED_MEANING]
    if comparison.regressions:
        cases = counted(comparison.regressions, "case")
        beyond = "" if comparison.interleaved else ", and by more than two runs differ by themselves"
        lines.append(f"{cases} slower by more than {comparison.fail_on * 100:.3g}%{beyond}, or lost.")
    return lines


def _apart(rows: Sequence[Row]) -> Iterator[str]:
    """How far two stored runs are apart in all, and how many of those that were not judged are beyond the bar."""
    if not rows:
        return
    apart = [row.apart for row in rows]
    within = ", ".join(f"{sum(each <= near for each in apart)} within {near:.0%}" for near in NEAR)
    said = (
        f"Of {counted(len(rows), 'case')} {within}; {median(apart):.1%} apart in the median, {max(apart):.1%} at most."
    )
    beyond = sum(row.judged.verdict == "not judged" and far > STORED_BAR for row, far in zip(rows, apart, strict=True))
    if beyond:
        said += f" {counted(beyond, 'case')} beyond {STORED_BAR:.0%} may not be judged, as notes or interval say."
    yield said


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


def _markdown_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    """No markup of a stranger's name: what Markdown or HTML would take for its own is written out."""
    for sign in "\\|`*_<>[]":
        text = text.replace(sign, f"\\{sign}")
    return printable(text)


def _reach(rows: Sequence[Row]) -> float:
    """How far from 1 the plots go: every ratio and nine of ten intervals lie within, but none beyond twice as slow."""
    ends = sorted(max(row.judged.high - 1, 1 - row.judged.low) for row in rows)
    farthest = max((abs(row.judged.ratio - 1) for row in rows), default=0.0)
    return min(1.0, max(SCALE, 1.05 * farthest, ends[int(0.9 * (len(ends) - 1))])) if ends else SCALE


def _plot(row: Row, reach: float) -> dict[str, float]:
    """Places in pixels of a row's ratio and its interval, cut where they leave the axis."""
    places = {"low": row.judged.low, "ratio": row.judged.ratio, "high": row.judged.high}
    return {name: round(WIDTH / 2 * (1 + min(1.0, max(-1.0, (at - 1) / reach))), 1) for name, at in places.items()}
