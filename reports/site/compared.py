"""Choose which runs of a site to compare, and compare them.

A run is compared with the previous and the newest run on its GPU model. The newest run on each GPU model is compared
with the newest run on each other model. Each choice skips runs that share too few measured cases.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reports.compare.comparison import Comparison, compare_cases
from reports.profiles.diff import diff_of_runs
from reports.site.entry import Entry

_MIN_SHARED = 0.5  # compared runs share at least this part of the measured cases of the smaller run


@dataclass(frozen=True)
class RunPair:
    """Two runs of a site and their comparison; `a` is older.

    profiles: HTML that compares the profiles of the cases that both runs profiled; "" for none.
    """

    a: Entry
    b: Entry
    comparison: Comparison
    profiles: Markup

    @property
    def page(self) -> str:
        return f"compared/{self.a.id}--{self.b.id}.html"


def comparisons(entries: Sequence[Entry]) -> list[RunPair]:
    """Compare runs within each GPU model, and the newest across models. entries: newest first."""
    timed = [entry for entry in entries if entry.run.file.mode == "measure" and entry.run_cases.measured]
    pairs = {(a.id, b.id): (a, b) for a, b in _pairs(timed)}
    return [RunPair(a, b, compare_cases(a.run_cases, b.run_cases), _profiles(a, b)) for a, b in pairs.values()]


def _pairs(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    by_model: dict[str, list[Entry]] = {}
    for entry in entries:
        by_model.setdefault(entry.run_cases.side.device, []).append(entry)
    for at, entry in enumerate(entries):
        older = entries[at + 1 :]
        comparable = [each for each in by_model[entry.run_cases.side.device] if _are_comparable(entry, each)]
        for newest in comparable[:1]:
            if newest is not entry:
                yield entry, newest
        for before in [each for each in comparable if each in older][:1]:
            yield before, entry
        for model, own in by_model.items() if comparable[:1] == [entry] else ():
            newest_other = [each for each in own if _are_comparable(entry, each)][:1]
            if model != entry.run_cases.side.device and newest_other and newest_other[0] in older:
                yield newest_other[0], entry


def _profiles(a: Entry, b: Entry) -> Markup:
    return diff_of_runs(a.run, b.run, (a.name, b.name)) if a.profiles and b.profiles else Markup()


def _are_comparable(one: Entry, other: Entry) -> bool:
    a, b = one.run_cases.measured, other.run_cases.measured
    return len(a & b) >= max(1, _MIN_SHARED * min(len(a), len(b)))
