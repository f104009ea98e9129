"""Catalogue of a run: labels, drawing styles, suites and figures. `bench.catalogue` fills it, `reports` draws from it.

Each run stores its catalogue, so reports can draw runs of other versions and systems of other repositories.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, Field

from harness.schema.case import Scalar, Stored, Text

# Styles that pages can draw.
TONES = 8  # colours, numbered from 0
MARKERS = ("circle", "square", "diamond", "triangle-up", "pentagon", "triangle-down", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class SystemEntry(Stored):
    """Style of a system.

    family: kind of the system, such as "TTT".
    tone: index of its colour, below `TONES`.
    marker: one of `MARKERS`.
    """

    name: Text
    label: Text
    family: Text
    tone: int
    marker: Text

    def __post_init__(self) -> None:
        if not 0 <= self.tone < TONES:
            raise ValueError(f"catalogue: system {self.name!r}: tone is {self.tone}, must be from 0 to {TONES - 1}")
        _refuse_unknown(f"system {self.name!r}: marker", self.marker, MARKERS)


@dataclass(frozen=True)
class BackendEntry(Stored):
    """Style of a backend: the dash of its lines, one of `DASHES`."""

    name: Text
    label: Text
    dash: Text

    def __post_init__(self) -> None:
        _refuse_unknown(f"backend {self.name!r}: dash", self.dash, DASHES)


_OLDER_METRICS = {"floor_ms": "lower_bound_ms", "floor_share": "lower_bound_share"}  # in older runs, with today's names


@dataclass(frozen=True)
class MetricEntry(Stored):
    """A recorded or derived number, shown divided by `scale`, in `unit`.

    better: "lower", "higher", or "" if neither is better.
    text: whether `ttt-bench table` shows it by default.
    """

    name: Annotated[Text, AfterValidator(lambda name: _OLDER_METRICS.get(name, name))]
    label: Text
    unit: Text = ""
    better: Literal["lower", "higher", ""] = ""
    scale: Annotated[float, Field(gt=0)] = 1.0
    text: bool = False


@dataclass(frozen=True)
class AxisEntry(Stored):
    """A field or an option of a case.

    phrase: words for a value in captions, where {} stands for the value.
    default: value of an option that a case leaves out; None if some systems lack the option.
    """

    name: Text
    label: Text
    phrase: Text
    default: Scalar | None = None


@dataclass(frozen=True)
class PaperClaim(Stored):
    """A claim of a figure's source: from x = `at_least` on, `system` is better than `other`.

    text: the claim in words, as captions quote it.
    margin: share by which the system may be worse and still satisfy the claim.
    """

    text: Text
    system: Text
    other: Text
    at_least: float = 0.0
    margin: float = 0.0


@dataclass(frozen=True)
class FigureEntry(Stored):
    """A figure of one phase of a suite: the metric `y` against the axis `x`.

    along: the axis that varies along a line if `x` is a result, such as the batch if `x` is the interactivity.
    split: one figure for each value of these columns.
    forms: whether to add a figure of the ratio primal / dual, TTT's two forms.
    `lower_bound`: whether to draw the roofline bound, the metric `lower_bound_ms`, too.
    best: whether to emphasize the x with the best y on each line that has a turning point.
    primary: lines (SYSTEM/BACKEND) that answer the figure's question; empty for all.
    claims: claims of the source, checked on the primary lines.
    """

    phase: Text
    title: Text
    x: Text = "context"
    y: Text = "us_per_token"
    source: Text = ""
    y_log: bool = False
    best: bool = False
    along: Text = ""
    split: tuple[Text, ...] = ()
    forms: bool = False
    lower_bound: Annotated[bool, Field(validation_alias=AliasChoices("lower_bound", "floor"))] = False  # older name
    primary: tuple[Text, ...] = ()
    claims: tuple[PaperClaim, ...] = ()


@dataclass(frozen=True)
class SuiteEntry(Stored):
    """A suite: its question, its figures, and the keys of its cases."""

    name: Text
    question: Text
    figures: tuple[FigureEntry, ...] = ()
    cases: tuple[Text, ...] = ()


@dataclass(frozen=True)
class Catalogue(Stored):
    """All entries of a run. Raises ValueError if entries contradict each other."""

    systems: tuple[SystemEntry, ...] = ()
    backends: tuple[BackendEntry, ...] = ()
    metrics: tuple[MetricEntry, ...] = ()
    axes: tuple[AxisEntry, ...] = ()
    phases: tuple[tuple[Text, Text], ...] = ()  # (name, label)
    suites: tuple[SuiteEntry, ...] = ()

    def __post_init__(self) -> None:
        for kind in ("systems", "backends", "metrics", "axes", "suites"):
            _refuse_repetition(kind, (entry.name for entry in getattr(self, kind)))
        metrics, axes = {each.name for each in self.metrics}, {each.name for each in self.axes}
        for suite in self.suites:
            for figure in suite.figures:
                where = f"catalogue: suite {suite.name!r}, figure {figure.title!r}"
                if figure.y not in metrics:
                    raise ValueError(f"{where}: y is {figure.y!r}, which is no metric")
                for axis in (figure.x, *filter(None, (figure.along,)), *figure.split):
                    if axis not in axes and axis not in ("system", "backend"):
                        raise ValueError(f"{where}: {axis!r} is no axis")

    def merged(self, newer: "Catalogue") -> "Catalogue":
        """Return both catalogues merged: for each name the newer entry, for each suite the cases of both."""
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
        """Return the label of a system, or `name` for an unknown one."""
        return next((each.label for each in self.systems if each.name == name), name)

    def backend_label(self, name: str) -> str:
        """Return the label of a backend, or `name` for an unknown one."""
        return next((each.label for each in self.backends if each.name == name), name)

    def metric(self, name: str) -> MetricEntry:
        """Return the entry of a metric; an unknown one is labelled by its name."""
        return next((each for each in self.metrics if each.name == name), MetricEntry(name, name))

    def axis(self, name: str) -> AxisEntry:
        """Return the entry of an axis; an unknown one is labelled by its name."""
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
