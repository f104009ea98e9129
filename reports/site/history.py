"""Systems over time: the latency of each case in each run of a site, by date."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.schema.reason import rounded
from reports.compare.side import CaseSide
from reports.site.entry import Entry, system_id, utc_time

DatedCase = tuple[datetime, str, CaseSide]  # the start of a case's first record, the id of its run, the case


@dataclass(frozen=True)
class History:
    """One system's latencies over the runs of a site.

    runs: ids of the runs that measured the system. cases: JSON data of each case for the plots, sorted by label.
    """

    name: str
    label: str
    tone: int
    marker: str
    runs: frozenset[str]
    cases: list[dict[str, Any]]

    @property
    def page(self) -> str:
        return f"over-time/{system_id(self.name)}.html"


def histories(entries: Sequence[Entry]) -> list[History]:
    """Return each system's history of dated latencies. entries: the runs, newest first.

    If the label, color (`tone`) or marker of a system differs between runs, its newest run decides.
    """
    looks: dict[str, tuple[str, int, str]] = {}
    found: dict[str, dict[str, list[DatedCase]]] = {}
    for entry in reversed(entries):
        looks |= {name: (label, tone, marker) for name, label, tone, marker in entry.systems}
        for key, side in entry.run_cases.cases.items():
            at = utc_time(min(side.measurements, default=("", ()))[0])
            if side.medians and at:
                found.setdefault(side.case.system, {}).setdefault(key, []).append((at, entry.id, side))
    return [
        History(
            name,
            *looks[name],
            frozenset(run for points in by_key.values() for _, run, _ in points),
            sorted(map(_case, by_key.values()), key=lambda case: _natural_order(case["label"])),
        )
        for name, by_key in found.items()
    ]


def _natural_order(label: str) -> list[str | int]:
    """Return a sort key that orders the numbers in a label by value: `B=2` before `B=16`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", label)]


def _case(points: Sequence[DatedCase]) -> dict[str, Any]:
    """Return a case's data for the plots; points of one device and driver form a line."""
    side = points[0][2]
    is_per_token = len({tokens for *_, each in points for tokens in each.tokens.values()}) > 1
    lines: dict[str, list[DatedCase]] = {}
    for point in sorted(points, key=lambda point: point[:2]):
        lines.setdefault(_machine(point[2]), []).append(point)
    return {
        "key": side.case.key,
        "label": side.label,
        "name": side.label.replace(f" {side.case.phase} B={side.case.batch}", "", 1),
        "group": f"{side.case.phase}, batch {side.case.batch}",
        "unit": "ms per token" if is_per_token else "ms",
        "lines": [_line(machine, lines[machine], is_per_token) for machine in sorted(lines)],
    }


def _machine(side: CaseSide) -> str:
    known = {**side.device, "driver": side.facts["driver"]} if side.device else {}
    named = {name: value for name, value in known.items() if value and (name, value) != ("GPU", "none")}
    words = {"driver": "driver {}", "CPU cores": "{} cores"}
    texts = [words.get(name, "{}").replace("{}", value) for name, value in named.items()]
    return " · ".join(texts) or "device not recorded"


def _line(machine: str, points: Sequence[DatedCase], is_per_token: bool) -> dict[str, Any]:
    sides = [side for *_, side in points]
    times = [math.exp(side.middle) if is_per_token else side.ms for side in sides]
    lows = [ms * math.exp(-side.below) for ms, side in zip(times, sides, strict=True)]  # 0 without an interval
    return {
        "machine": machine,
        "run": [run for _, run, _ in points],
        "at": [f"{at:%Y-%m-%dT%H:%M:%S}" for at, *_ in points],
        "ms": [rounded(ms, 6) for ms in times],
        "low": [rounded(low, 6) or None for low in lows],
        "high": [rounded(ms * math.exp(side.above), 6) for ms, side in zip(times, sides, strict=True)],
        "sequences": [side.tokens_words for side in sides] if is_per_token else [],
        "commit": [side.facts.get("commit", "") for side in sides],
        "flagged": [at for at, side in enumerate(sides) if side.flags],
    }
