"""Names, labels, looks and figures of what is measured, as a run carries them with it.

`bench.catalogue` fills it; `reports` draws from it. So a run that another version made, or one with a system that is
not in this repository, is drawn under its own labels.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

from harness.schema.case import Scalar

FORBID_EXTRA = {"extra": "forbid", "strict": True}
# What pages can draw.
TONES = 8  # colours, numbered from 0
MARKERS = ("circle", "square", "diamond", "triangle-up", "pentagon", "triangle-down", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class SystemEntry:
    """A system as it is drawn; family: what it is one of, such as "TTT".

    tone: index of its colour, below `TONES`; marker: one of `MARKERS`. ValueError otherwise, as no page can draw it.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    name: str
    label: str
    family: str
    tone: int
    marker: str

    def __post_init__(self) -> None:
        if not 0 <= self.tone < TONES:
            raise ValueError(f"catalogue: system {self.name!r}: tone is {self.tone}, must be from 0 to {TONES - 1}")
        _refuse_unknown(f"system {self.name!r}: marker", self.marker, MARKERS)


@dataclass(frozen=True)
class BackendEntry:
    """What runs a system, and the dash of its lines: one of `DASHES`, ValueError otherwise."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    name: str
    label: str
    dash: str

    def __post_init__(self) -> None:
        _refuse_unknown(f"backend {self.name!r}: dash", self.dash, DASHES)


@dataclass(frozen=True)
class MetricEntry:
    """A number of a record or one that follows from it. It is shown divided by `scale`, in `unit`.

    better: "lower", "higher", or "" where neither is. text: whether `ttt-bench table` shows it without being asked,
    where it has room. The page shows it in figures whose y it is, and in its table by the menu of columns.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    name: str
    label: str
    unit: str = ""
    better: Literal["lower", "higher", ""] = ""
    scale: float = 1.0
    text: bool = False


@dataclass(frozen=True)
class AxisEntry:
    """A field or an option of a case. phrase: how captions say a value, with {} for it.

    default: of an option that a case leaves out. A figure that has the option as an axis fills it in for every system
    of its suite: None where some of them have no such option.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    name: str
    label: str
    phrase: str
    default: Scalar | None = None


@dataclass(frozen=True)
class PaperClaim:
    """What the source of a figure says of two systems: from x = `at_least` on, `system` is better than `other`.

    text: the claim in words, after "that". margin: by how much it may be worse and still keep the claim, as a share.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    text: str
    system: str
    other: str
    at_least: float = 0.0
    margin: float = 0.0


@dataclass(frozen=True)
class FigureEntry:
    """Cases of one phase of a suite, `y` (a metric) against `x` (an axis).

    split: one figure for each value of these columns. forms: a second figure of primal over dual, where both are.
    floor: lines of the metric `floor_ms` too. best: mark the best x of each line that turns.
    primary: the lines (SYSTEM/BACKEND) that answer the figure's question; empty for all.
    claims: of the source, which the page checks on its primary lines.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    phase: str
    title: str
    x: str = "context"
    y: str = "us_per_token"
    source: str = ""
    y_log: bool = False
    best: bool = False
    split: tuple[str, ...] = ()
    forms: bool = False
    floor: bool = False
    primary: tuple[str, ...] = ()
    claims: tuple[PaperClaim, ...] = ()


@dataclass(frozen=True)
class SuiteEntry:
    """A suite of the run: its question, its figures, and the keys of its cases."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    name: str
    question: str
    figures: tuple[FigureEntry, ...] = ()
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Catalogue:
    """Everything a page needs to know of what it draws. Raises ValueError where entries contradict each other."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    systems: tuple[SystemEntry, ...] = ()
    backends: tuple[BackendEntry, ...] = ()
    metrics: tuple[MetricEntry, ...] = ()
    axes: tuple[AxisEntry, ...] = ()
    phases: tuple[tuple[str, str], ...] = ()  # (name, label)
    suites: tuple[SuiteEntry, ...] = ()

    def __post_init__(self) -> None:
        for kind in ("systems", "backends", "metrics", "axes", "suites"):
            _refuse_repetition(kind, (entry.name for entry in getattr(self, kind)))
        _refuse_unprintable(asdict(self))
        for metric in self.metrics:
            if not 0 < metric.scale < math.inf:
                raise ValueError(f"catalogue: metric {metric.name!r}: scale is {metric.scale}, must be above 0")
        metrics, axes = {each.name for each in self.metrics}, {each.name for each in self.axes}
        for suite in self.suites:
            for figure in suite.figures:
                where = f"catalogue: suite {suite.name!r}, figure {figure.title!r}"
                if figure.y not in metrics:
                    raise ValueError(f"{where}: y is {figure.y!r}, which is no metric")
                for axis in (figure.x, *figure.split):
                    if axis not in axes and axis not in ("system", "backend"):
                        raise ValueError(f"{where}: {axis!r} is no axis")

    def merged(self, newer: "Catalogue") -> "Catalogue":
        """The entries of both; of two that have one name the newer, a suite with the cases of both."""
        parts: dict[str, Any] = {}
        for kind in ("systems", "backends", "metrics", "axes", "suites"):
            entries = {each.name: each for each in getattr(self, kind)}
            for each in getattr(newer, kind):
                earlier = entries.get(each.name)
                if isinstance(each, SuiteEntry) and isinstance(earlier, SuiteEntry):
                    each = replace(each, cases=tuple(dict.fromkeys((*earlier.cases, *each.cases))))
                entries[each.name] = each
            parts[kind] = tuple(entries.values())
        return Catalogue(**parts, phases=tuple((dict(self.phases) | dict(newer.phases)).items()))

    def system_label(self, name: str) -> str:
        """The label of a system; its name where it is not in the catalogue."""
        return next((each.label for each in self.systems if each.name == name), name)

    def backend_label(self, name: str) -> str:
        """The label of a backend; its name where it is not in the catalogue."""
        return next((each.label for each in self.backends if each.name == name), name)

    def metric(self, name: str) -> MetricEntry:
        """The entry of a metric; one that says no more than its name where it is not in the catalogue."""
        return next((each for each in self.metrics if each.name == name), MetricEntry(name, name))

    def axis(self, name: str) -> AxisEntry:
        """The entry of an axis; one that says no more than its name where it is not in the catalogue."""
        words = name.replace("_", "-")
        return next((each for each in self.axes if each.name == name), AxisEntry(name, words, f"{words} {{}}"))


def _refuse_unknown(where: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"catalogue: {where} is {value!r}, must be one of {', '.join(known)}")


def _refuse_repetition(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"catalogue: {kind} names {name!r} twice")
        seen.add(name)


def _refuse_unprintable(value: Any) -> None:
    """Labels go to terminals and pages."""
    if isinstance(value, str):
        if not value.isprintable():
            raise ValueError(f"catalogue: has the text {value[:60]!r}, which is not printable")
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_unprintable(each)
