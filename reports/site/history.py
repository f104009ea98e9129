"""Systems over time: the latency of each case through the runs of a site, by date."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from harness.schema.reason import rounded
from reports.compare.side import CaseSide, RunCases
from reports.site.entry import Entry, moment, system_id


@dataclass(frozen=True)
class HistoryPoint:
    """A case as measured in the run with id `run`; `at` is the start of its first record."""

    run: str
    at: datetime
    side: CaseSide


@dataclass(frozen=True)
class HistoryLine:
    """The history of a case on one kind of machine, such as a GPU model and driver."""

    machine: str
    points: tuple[HistoryPoint, ...]


@dataclass(frozen=True)
class HistoryCase:
    """The history of one case of a system, with a line for each kind of machine.

    label: the case in words. name: the label without phase and batch. group: phase and batch.
    """

    key: str
    label: str
    name: str
    group: str
    lines: tuple[HistoryLine, ...]

    @property
    def is_by_token(self) -> bool:
        """Whether latencies are per token, as an engine ran different numbers of sequences."""
        tokens = {each for line in self.lines for point in line.points for each in point.side.tokens.values()}
        return len(tokens) > 1


@dataclass
class History:
    """The history of one system through the runs of a site; `cases` are sorted by label."""

    name: str
    label: str
    tone: int
    marker: str
    cases: list[HistoryCase] = field(default_factory=list)

    @property
    def page(self) -> str:
        return f"over-time/{system_id(self.name)}.html"

    @property
    def runs(self) -> set[str]:
        return {point.run for case in self.cases for line in case.lines for point in line.points}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON data of a history page: each line has its points as columns."""
        return {"tone": self.tone, "marker": self.marker, "cases": [_drawn(case) for case in self.cases]}


def histories(entries: Iterable[Entry], held: Mapping[str, RunCases]) -> list[History]:
    """Return the history of each system, from all cases with a latency and a date.

    held: each run's cases by run id. A system has the label, tone and marker of its newest run.
    """
    looks: dict[str, tuple[str, int, str]] = {}
    for entry in sorted(entries, key=lambda entry: entry.updated):
        looks |= {name: (label, tone, marker) for name, label, tone, marker in entry.systems}
    points: dict[str, dict[str, dict[str, list[HistoryPoint]]]] = {name: {} for name in looks}
    for run, each in held.items():
        for key, side in each.cases.items():
            at = moment(side.started_at)
            if side.medians and at:
                lines = points.setdefault(side.system, {}).setdefault(key, {})
                lines.setdefault(_machine(side), []).append(HistoryPoint(run, at, side))
    found = []
    for name, by_key in points.items():
        cases = [_case(key, lines) for key, lines in by_key.items()]
        cases.sort(key=lambda case: _by_numbers(case.label))
        if cases:
            found.append(History(name, *looks[name], cases))
    return found


def _by_numbers(label: str) -> list[str | int]:
    """Return a sort key that orders the numbers in a label by value: `B=2` before `B=16`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", label)]


def _machine(side: CaseSide) -> str:
    devices = [" · ".join(_said(device)) for device in side.devices]
    return " and ".join(devices) or "device not recorded"


def _said(device: Any) -> Iterable[str]:
    named = {name: value for name, value in device.items() if value and (name, value) != ("GPU", "none")}
    words = {"driver": "driver {}", "CPU cores": "{} cores"}
    return (words.get(name, "{}").replace("{}", value) for name, value in named.items())


def _case(key: str, lines: dict[str, list[HistoryPoint]]) -> HistoryCase:
    side = next(iter(lines.values()))[0].side
    name = side.label.replace(f" {side.phase} B={side.batch}", "", 1)
    drawn = tuple(_line(machine, lines[machine]) for machine in sorted(lines))
    return HistoryCase(key, side.label, name, f"{side.phase}, batch {side.batch}", drawn)


def _line(machine: str, points: list[HistoryPoint]) -> HistoryLine:
    return HistoryLine(machine, tuple(sorted(points, key=lambda point: (point.at, point.run))))


def _drawn(case: HistoryCase) -> dict[str, Any]:
    return {
        "key": case.key,
        "label": case.label,
        "name": case.name,
        "group": case.group,
        "unit": "ms per token" if case.is_by_token else "ms",
        "lines": [_line_drawn(line, case.is_by_token) for line in case.lines],
    }


def _line_drawn(line: HistoryLine, is_by_token: bool) -> dict[str, Any]:
    sides = [point.side for point in line.points]
    times = [math.exp(side.middle) if is_by_token else side.ms for side in sides]
    return {
        "machine": line.machine,
        "run": [point.run for point in line.points],
        "at": [f"{point.at:%Y-%m-%dT%H:%M:%S}" for point in line.points],
        "ms": [rounded(ms, 6) for ms in times],
        "low": [
            rounded(ms * math.exp(-side.below), 6) if side.below < math.inf else None
            for ms, side in zip(times, sides, strict=True)
        ],
        "high": [rounded(ms * math.exp(side.above), 6) for ms, side in zip(times, sides, strict=True)],
        "sequences": [side.tokens_words for side in sides] if is_by_token else [],
        "commit": [side.facts.get("commit", "") for side in sides],
        "doubtful": [at for at, point in enumerate(line.points) if not point.side.is_sound],
    }
