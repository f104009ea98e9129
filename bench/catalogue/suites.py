"""The suites (cases of each figure), read from `suites.toml`; to add one, add a section."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import NonNegativeFloat, PositiveInt, TypeAdapter, ValidationError

from bench.catalogue import CATALOGUE
from bench.catalogue.systems import ADAPTERS, HEADLINES
from bench.errors import UserError, unknown
from bench.models.config import SIZES
from harness.measure.interval import FEWEST
from harness.schema.case import PHASES, Stored, one_of
from harness.schema.catalogue import FigureEntry, SuiteEntry
from harness.schema.files import read_toml
from harness.schema.reason import invalid
from tk_kernels.cost import ELEMENT_BYTES

Option = Annotated[str, one_of(*(axis.name for axis in CATALOGUE.axes))]
LABELS = [each.label for each in ADAPTERS]


@dataclass(frozen=True)
class Panel(Stored):
    """Cases of one phase: all combinations of systems, backends, sizes, batches, contexts, state dtypes and options."""

    phase: Annotated[str, one_of(*PHASES)]
    systems: tuple[Annotated[str, one_of(*(each.system for each in ADAPTERS))], ...]
    batches: tuple[PositiveInt, ...]
    contexts: tuple[PositiveInt, ...]
    options: dict[Option, tuple[str | int, ...]] = field(default_factory=dict)
    sizes: tuple[Annotated[str, one_of(*SIZES)], ...] = ("1.3b",)
    scope: Annotated[str, one_of("model", "layer")] = "model"
    l2: Annotated[str, one_of("warm", "cold")] = "warm"
    timing: Annotated[str, one_of("", "eager", "graph")] = ""  # "" for the default of `cases.timing_of`
    skip_after_oom: bool = False  # whether to skip larger batches and contexts after the first case that does not fit
    backends: tuple[Annotated[str, one_of(*(each.backend for each in ADAPTERS))], ...] = ()  # () for all
    state_dtypes: tuple[Annotated[str, one_of(*ELEMENT_BYTES, "float32-planes")], ...] = ()  # () for the system's own
    dtype: Annotated[str, one_of("", *ELEMENT_BYTES)] = ""  # of weights; "" for bfloat16 on a GPU and float32 on a CPU


@dataclass(frozen=True)
class Suite(Stored):
    """The cases that `ttt-bench run NAME` measures, and the figures that show them."""

    name: str
    question: str
    panels: tuple[Panel, ...]
    figures: tuple[FigureEntry, ...] = ()
    device: Annotated[str, one_of("cuda", "")] = "cuda"  # "" for any device
    min_samples: PositiveInt = FEWEST  # per case, whatever the time budget
    budget_s: NonNegativeFloat = 0.0  # seconds of sampling per case; 0: BUDGETS_S; a run uses its suites' highest

    def __post_init__(self) -> None:
        for label in (each for figure in self.figures for each in figure.primary):
            if label not in LABELS:
                raise unknown(f"primary {label}", label, LABELS)
        replace(CATALOGUE, suites=(SuiteEntry(self.name, self.question, self.figures),))  # checks metrics and axes


@dataclass(frozen=True)
class Group(Stored):
    """Suites that `ttt-bench run NAME` measures together."""

    name: str
    question: str
    suites: tuple[str, ...]
    systems: tuple[Annotated[str, one_of(*LABELS)], ...] = ()  # () for all


def section(values: dict[str, object]) -> Suite | Group:
    """Return a section of `suites.toml`; UserError for a mistake."""
    text = json.dumps(values).replace('["headlines"]', json.dumps(HEADLINES))
    try:
        return (_GROUP if "suites" in values else _SUITE).validate_json(text)
    except ValidationError as error:
        raise UserError(f"suites.toml: [{values['name']}]: {invalid(error)}") from None


_SUITE, _GROUP = TypeAdapter(Suite), TypeAdapter(Group)  # once: each takes 2 ms of every start
_FIELDS = read_toml(Path(__file__).parent / "suites.toml", UserError)
_SECTIONS = [section({"name": name, **fields}) for name, fields in _FIELDS.items()]
SUITES = tuple(each for each in _SECTIONS if isinstance(each, Suite))
GROUPS = {each.name: each for each in _SECTIONS if isinstance(each, Group)}


def find_suite(name: str) -> Suite:
    """Return the suite called `name`. Raises UserError if there is none."""
    for suite in SUITES:
        if suite.name == name:
            return suite
    if name.partition("/")[0] in {adapter.system for adapter in ADAPTERS}:
        raise UserError(f"{name!r} is a system, not a suite; use --systems {name}")
    raise unknown(f"suite {name!r}", name, [*(suite.name for suite in SUITES), *GROUPS])


DEFAULT_SUITES = {"cuda": "paper", "cpu": "quick"}  # suite or group that `ttt-bench run` measures, by device
# Seconds of sampling per case by device; suites share this default, because they share cases.
BUDGETS_S = {"cuda": 1.0, "cpu": 1.5}
