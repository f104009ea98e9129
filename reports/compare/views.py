"""A comparison as text or Markdown."""

import math
import re
from collections import Counter
from collections.abc import Sequence, Set
from statistics import median

from harness.schema.reason import counted, format_number, printable, span
from reports import grid
from reports.compare.comparison import BETWEEN_RUNS, OTHER_DEVICE, OUTCOMES, STORED_BAR, Comparison, Missing, Row
from reports.compare.decision import BAR, SAME

COLUMNS = ("outcome", "B/A", "95% interval", "A µs per token", "B µs per token", "case", "notes")
STORED_MEANING = (
    f"Between two runs of the same packages, 95% of the cases agree within {BETWEEN_RUNS['gpu']:.0%} on one GPU, "
    f"{BETWEEN_RUNS['gpus']:.0%} on two GPUs of one model at equal clocks, and {BETWEEN_RUNS['cpu']:.0%} on a CPU. "
    f"Differences up to {STORED_BAR:.0%} (CPU: {BETWEEN_RUNS['cpu']:.0%}) count as noise. `ttt-bench ab` measures two "
    f"commits alternately and detects smaller differences, above {BAR:.0%}."
)
OTHER_DEVICE_MEANING = "Cases measured on different devices have a ratio, but do not count as slower or faster."
NUMERIC = (False, True, True, True, True, False, False)
NEAR = (0.01, 0.02, 0.03)  # `bench.numbers` counts the points within each of these relative differences
MAX_LISTED_CASES = 12  # more cases without a comparison are counted by system
MARKDOWN_ROWS = 100  # GitHub takes comments of up to 65,536 characters
MAX_DEVIATING = 0.05  # in a confirmed run, at most this share of reliable points is lost or beyond `run_spread`
MAX_LISTED_GROUPS = 3  # groups of cases that the answer lists


def answer(comparison: Comparison) -> str:
    """Return one to four sentences that sum up the comparison."""
    rows = comparison.rows
    if not rows:
        return "Nothing was compared: no case has a result in both runs."
    if comparison.other_device:
        return _ratios(comparison)
    if comparison.interleaved:
        return _counts(comparison)
    reliable = [row for row in rows if not row.doubt]
    beyond = [row for row in reliable if row.relative_difference > comparison.run_spread]
    total, deviating = len(reliable), len(beyond) + comparison.counts.get("lost", 0)
    word = "Confirmed" if deviating <= MAX_DEVIATING * total else "Not confirmed"
    head = f"{word}: {total - len(beyond)} of {counted(total, 'reliable point')} within {comparison.run_spread:.0%}."
    if 2 * total < len(rows):
        head = f"Undecided: {total} of {counted(len(rows), 'point')} reliable."
    doubtful = _groups("Unreliable", [row for row in rows if row.doubt])
    groups = _groups(f"Over {comparison.run_spread:.0%}", beyond), doubtful
    return " ".join(filter(None, [head, *groups, _counts(comparison, {"slower", "faster", "lost"})]))


def _counts(comparison: Comparison, only: Set[str] = frozenset(OUTCOMES)) -> str:
    counts = [f"{count} {outcome}" for outcome, count in comparison.counts.items() if outcome in only]
    return f"{', '.join(counts)}." if counts else ""


def _ratios(comparison: Comparison) -> str:
    ratios = sorted(row.result.ratio for row in comparison.rows)
    where, a, b = comparison.other_device, comparison.a.name, comparison.b.name
    times = f"{where[0].upper()}{where[1:]}: {b} takes {median(ratios):.2f} times as long as {a}"
    if len(ratios) == 1:
        return f"{times}."
    ends = span(f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}")
    return f"{times} in the median of {counted(len(ratios), 'point')} ({ends})."


def _groups(heading: str, rows: Sequence[Row]) -> str:
    groups = Counter(f"{row.name} {row.phase}{_cause(row)}" for row in rows).most_common()
    listed = [f"{count} {group}" for group, count in groups[:MAX_LISTED_GROUPS]]
    listed += [f"{left} more"] if (left := sum(count for _, count in groups[MAX_LISTED_GROUPS:])) else []
    return f"{heading}: {', '.join(listed)}." if rows else ""


def _cause(row: Row) -> str:
    cause = row.doubt or re.split(r": | in | \(", "".join(row.notes[:1]))[0]
    return f" ({cause})" if cause else ""


def text(comparison: Comparison) -> str:
    """Return the comparison as text for a terminal, one line per case."""
    rows = [cells(row) for row in comparison.rows]
    table = grid.text(COLUMNS, rows, NUMERIC).rstrip("\n") if rows else ""
    parts = [[answer(comparison)], _header(comparison), [table], without(comparison), closing(comparison)]
    paragraphs = ["\n".join(part if part == [table] else map(printable, part)) for part in parts]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def markdown(comparison: Comparison) -> str:
    """Return the comparison as a Markdown comment for a pull request, with the table of cases collapsed."""
    rows = [[grid.escaped(cell) for cell in cells(row)] for row in comparison.rows[:MARKDOWN_ROWS]]
    left = len(comparison.rows) - len(rows)
    title = f"{counted(len(rows), 'case')}, the largest difference first{f'; {left} more omitted' if left else ''}"
    table = grid.markdown(COLUMNS, rows, NUMERIC).rstrip("\n") if rows else ""
    a, b, *differing = [f"- {grid.escaped(line)}" for line in (*_header(comparison), *without(comparison))]
    last = "\n".join(map(grid.escaped, closing(comparison)))
    folded = (f"<details><summary>{title}</summary>", table, "\n".join(differing), "</details>")
    parts = [f"**{grid.escaped(answer(comparison))}**", f"{a}\n{b}", last, *folded]
    return "\n\n".join(filter(None, parts)) + "\n"


def _header(comparison: Comparison) -> list[str]:
    sides = [
        f"{letter}: {side.name}, commit {side.commit}, on {side.device}{f', {side.measured}' if side.measured else ''}"
        for letter, side in (("A", comparison.a), ("B", comparison.b))
    ]
    differing = [f"differs: {each.sentence}" for each in comparison.differences]
    return [*sides, *(differing or ["differs: nothing that was recorded"])]


def without(comparison: Comparison) -> list[str]:
    """Return a line for each reason why cases have no comparison."""
    reasons: dict[str, list[Missing]] = {}
    for each in comparison.missing:
        reasons.setdefault(each.reason, []).append(each)
    return [f"{reason}: {_listed(cases)}" for reason, cases in reasons.items()]


def _listed(cases: list[Missing]) -> str:
    if len(cases) <= MAX_LISTED_CASES:
        return ", ".join(case.label for case in cases)
    systems = Counter(case.name for case in cases)
    return f"{len(cases)} cases ({', '.join(f'{count} {system}' for system, count in systems.items())})"


def closing(comparison: Comparison) -> list[str]:
    """Return lines with the outcome counts, the meaning of the outcomes, and the regressions."""
    counts = "" if comparison.other_device else _counts(comparison)
    lines = [counts] if counts not in ("", answer(comparison)) else []
    if comparison.interleaved:
        lines.append(
            f"A and B were measured alternately, with a fresh process per round and commit. B/A is the geometric mean "
            f"of the rounds. Slower and faster cases differ by more than {BAR:.0%}, same cases by less than {SAME:.0%}."
        )
    else:
        outcomes = {row.result.outcome for row in comparison.rows}
        lines += [OTHER_DEVICE_MEANING] if outcomes & {*OTHER_DEVICE} else []
        lines += [STORED_MEANING] if outcomes - {*OTHER_DEVICE} else []
    if comparison.regressions:
        lost = comparison.counts.get("lost", 0)
        lines += [f"{counted(lost, 'case')} lost: a result in A, none in B."] if lost else []
        slower = comparison.regressions - lost
        beyond = "" if comparison.interleaved else " and by more than the run-to-run spread"
        bar = f"{comparison.fail_on * 100:.3g}%{beyond}"
        lines += [f"{counted(slower, 'case')} slower by more than {bar}."] if slower else []
    return lines


def cells(row: Row) -> list[str]:
    """Return a case's row of the comparison's table, one text for each of `COLUMNS`."""
    result = row.result
    return [
        result.outcome,
        f"{result.ratio:.3f}",
        f"{result.low:.3f} to {result.high:.3f}" if result.high < math.inf else "unknown",
        format_number(row.a_us, 4),
        format_number(row.b_us, 4),
        row.label,
        "; ".join(row.notes),
    ]
