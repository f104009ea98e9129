"""Labels and styles stored in each run, so that other ttt-bench versions can report on it."""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, ConfigDict, Field

from harness.schema.case import STORED, Scalar, Stored, one_of

# Styles that pages can draw.
TONES = 8  # colors, numbered from 0
MARKERS = ("circle", "square", "diamond", "triangle-up", "pentagon", "triangle-down", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class SystemEntry(Stored):
    """Label and drawing style of a system in reports; `tone` is the index of its color."""

    __pydantic_config__: ClassVar[ConfigDict] = STORED | ConfigDict(extra="ignore")  # older runs have a `family`

    name: str
    label: str
    tone: Annotated[int, Field(ge=0, lt=TONES)]
    marker: Annotated[str, one_of(*MARKERS)]


@dataclass(frozen=True)
class BackendEntry(Stored):
    """Label and dash pattern of a backend in reports; `dash` is one of `DASHES`."""

    name: str
    label: str
    dash: Annotated[str, one_of(*DASHES)]


OLDER_METRICS = {"floor_ms": "lower_bound_ms", "floor_share": "lower_bound_share"}  # older name: name today
_Metric = Annotated[str, AfterValidator(lambda name: OLDER_METRICS.get(name, name))]


@dataclass(frozen=True)
class MetricEntry(Stored):
    """How reports show a metric: the number divided by `scale`, in `unit`.

    better: whether "lower" or "higher" values are better; "" if neither.
    text: whether `ttt-bench table` shows the metric by default.
    """

    name: _Metric
    label: str
    unit: str = ""
    better: Literal["lower", "higher", ""] = ""
    scale: Annotated[float, Field(gt=0)] = 1.0
    text: bool = False


@dataclass(frozen=True)
class AxisEntry(Stored):
    """How reports name an axis of a figure: a case's field or option, or a result.

    phrase: words for a value in captions; {} stands for the value.
    default: the value of an option in a case that does not set it; None if such a case has no value on this axis.
    """

    name: str
    label: str
    phrase: str
    default: Scalar | None = None


@dataclass(frozen=True)
class PaperClaim(Stored):
    """A claim of the TTT paper on a figure: from x = `at_least` on, `system` beats `other`.

    text: the claim in words, as the page quotes it.
    margin: share by which `system` may be worse and still satisfy the claim.
    """

    text: str
    system: str
    other: str
    at_least: float = 0.0
    margin: float = 0.0


@dataclass(frozen=True)
class FigureEntry(Stored):
    """A figure of one phase of a suite: the metric `y` plotted against the axis `x`.

    along: if `x` is a result such as interactivity, the axis that varies along a line, such as the batch.
    source: the TTT paper's figure that this one reproduces, such as "Figure 15, left"; "" for none.
    split: axes; each combination of their values has a figure of its own.
    forms: whether to add a figure of y in TTT's primal form divided by y in its dual form.
    `lower_bound`: whether to draw the roofline bound (the metric `lower_bound_ms`). y_log: force a log y axis.
    best: whether the sentence on the figure ranks lines by their highest y, instead of by y at each x.
    primary: lines, named SYSTEM/BACKEND, that answer the figure's question; empty for all lines.
    claims: claims of the paper, checked on the primary lines.
    """

    phase: str
    title: str
    x: str = "context"
    y: _Metric = "us_per_token"
    source: str = ""
    y_log: bool = False
    best: bool = False
    along: str = ""
    split: tuple[str, ...] = ()
    forms: bool = False
    lower_bound: Annotated[bool, Field(validation_alias=AliasChoices("lower_bound", "floor"))] = False  # older name
    primary: tuple[str, ...] = ()
    claims: tuple[PaperClaim, ...] = ()

    @property
    def primary_systems(self) -> set[str]:
        return {label.partition("/")[0] for label in self.primary}


@dataclass(frozen=True)
class SuiteEntry(Stored):
    """A suite: the question that it answers, its figures, and its cases' keys (`Case.key`)."""

    name: str
    question: str
    figures: tuple[FigureEntry, ...] = ()
    cases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Catalogue(Stored):
    """A run's labels, styles, suites and figures; ValueError if a figure names an unknown metric or axis."""

    systems: tuple[SystemEntry, ...] = ()
    backends: tuple[BackendEntry, ...] = ()
    metrics: tuple[MetricEntry, ...] = ()
    axes: tuple[AxisEntry, ...] = ()
    phases: tuple[tuple[str, str], ...] = ()  # (name, label)
    suites: tuple[SuiteEntry, ...] = ()

    def __post_init__(self) -> None:
        metrics, axes = {each.name for each in self.metrics}, {each.name for each in self.axes}
        for suite in self.suites:
            for figure in suite.figures:
                where = f"catalogue: suite {suite.name!r}, figure {figure.title!r}"
                if figure.y not in metrics:
                    raise ValueError(f"{where}: unknown metric {figure.y!r}")
                for axis in (figure.x, *filter(None, (figure.along,)), *figure.split):
                    if axis not in axes and axis not in ("system", "backend"):
                        raise ValueError(f"{where}: unknown axis {axis!r}")

    def merged(self, newer: "Catalogue") -> "Catalogue":
        """Return the union with `newer`, whose entries win for equal names; suites keep the cases of both."""
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
        """Return the label of the system `name`; `name` itself if the catalogue lacks it."""
        return next((each.label for each in self.systems if each.name == name), name)

    def backend_label(self, name: str) -> str:
        """Return the label of the backend `name`; `name` itself if the catalogue lacks it."""
        return next((each.label for each in self.backends if each.name == name), name)

    def metric(self, name: str) -> MetricEntry:
        """Return the entry of metric `name`; if the catalogue lacks it, a new entry labelled `name`."""
        return next((each for each in self.metrics if each.name == name), MetricEntry(name, name))

    def axis(self, name: str) -> AxisEntry:
        """Return the entry of axis `name`; if missing, a new one labelled `name`, with "-" for "_"."""
        words = name.replace("_", "-")
        return next((each for each in self.axes if each.name == name), AxisEntry(name, words, f"{words} {{}}"))
