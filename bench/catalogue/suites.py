"""The suites: the cases of each figure, as `suites.toml` defines them. To add a suite, add a section to that file."""

import json
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter

from bench.catalogue.systems import ADAPTERS, HEADLINES
from bench.errors import UserError, unknown
from harness.measure.interval import FEWEST
from harness.schema.case import Stored
from harness.schema.catalogue import FigureEntry


@dataclass(frozen=True)
class Panel(Stored):
    """Cases of one phase: every combination of systems, sizes, batches, contexts and options."""

    phase: str
    systems: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    options: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    sizes: tuple[str, ...] = ("1.3b",)
    scope: str = "model"  # or "layer"
    l2: str = "warm"
    timing: str = ""  # "" for the system's own; see `cases.timing_of`
    # Whether batch or context grow until memory is exhausted: after the first case that does not fit, skip larger ones.
    grows: bool = False
    backends: tuple[str, ...] = ()  # () for all
    state_dtypes: tuple[str, ...] = ()  # () for the system's own
    dtype: str = ""  # of weights and activations; "" for bfloat16 on a GPU and float32 on a CPU


@dataclass(frozen=True)
class Suite(Stored):
    """A suite, as `ttt-bench run NAME` measures it."""

    name: str
    question: str
    panels: tuple[Panel, ...]
    figures: tuple[FigureEntry, ...] = ()
    device: str = "cuda"  # "" for any device
    min_samples: int = FEWEST  # per case, whatever the time budget
    trial: bool = False  # left out of the group `all`: a search for default settings, or cases that take minutes
    budget_s: float = 0.0  # of sampling per case; 0 for BUDGETS_S. A run of several suites takes the highest


def _suites() -> tuple[Suite, ...]:
    sections = tomllib.loads((Path(__file__).parent / "suites.toml").read_text(encoding="utf-8"))
    named = json.dumps([{"name": name, **section} for name, section in sections.items()])
    return tuple(
        replace(suite, figures=tuple(_with_headlines(figure) for figure in suite.figures))
        for suite in TypeAdapter(list[Suite]).validate_json(named)
    )


def _with_headlines(figure: FigureEntry) -> FigureEntry:
    return replace(figure, primary=HEADLINES) if figure.primary == ("headlines",) else figure


SUITES: tuple[Suite, ...] = _suites()


def find_suite(name: str) -> Suite:
    """Return the suite called `name`. Raises UserError if there is none."""
    for suite in SUITES:
        if suite.name == name:
            return suite
    names = [suite.name for suite in SUITES] + [group.name for group in GROUPS]
    if name.partition("/")[0] in {adapter.system for adapter in ADAPTERS}:
        raise UserError(f"{name!r} is a system, not a suite; use --systems {name}")
    raise unknown(f"suite {name!r}", name, names)


@dataclass(frozen=True)
class Group:
    """Suites that `ttt-bench run NAME` measures together."""

    name: str
    question: str
    suites: tuple[str, ...]
    systems: tuple[str, ...] = ()  # SYSTEM/BACKEND; () for all


# Seconds of sampling per case by device; suites share this default, because they share cases.
BUDGETS_S = {"cuda": 1.0, "cpu": 1.5}

GROUPS: tuple[Group, ...] = (
    Group(
        "fig15",
        "Figure 15: latency over context length, headline systems",
        ("fig15-forward", "fig15-generate"),
        HEADLINES,
    ),
    Group(
        "paper",
        "Figures 15 and 20: TTT-Linear, TTT-MLP, vLLM's Transformer with and without GQA, and Mamba",
        ("fig15-forward", "fig15-generate", "fig20-throughput"),
        HEADLINES,
    ),
    Group(
        "all",
        "Every suite except `quick` and searches for settings, on every system; slow references last",
        tuple(suite.name for suite in SUITES if suite.name != "quick" and not suite.trial),
    ),
)


def find_group(name: str) -> Group | None:
    """Return the group called `name`, or None."""
    return next((group for group in GROUPS if group.name == name), None)


def default_suite(device: str) -> str:
    """Return the suite or group that `ttt-bench run` measures by default on "cpu" or "cuda"."""
    return "paper" if device == "cuda" else "quick"
