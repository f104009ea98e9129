"""What a suite is: panels of cases, the question they answer, and its figures."""

from dataclasses import dataclass, field

from harness.measure.interval import FEWEST
from harness.schema.catalogue import FigureEntry as Figure


@dataclass(frozen=True)
class Panel:
    """A rectangle of cases: every combination of its axes, for every system."""

    phase: str
    systems: tuple[str, ...]
    sizes: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    options: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    scope: str = "model"  # or "layer": one layer of it, the latency of the kernel suites
    l2: str = "warm"
    timing: str = ""  # "" for the system's own; see `plan.timing_of`
    # Whether batch or context run into memory's end on purpose: after the first that does not fit, larger ones are
    # skipped.
    grows: bool = False
    backends: tuple[str, ...] = ()  # only these; empty for all
    state_dtypes: tuple[str, ...] = ()  # empty for that of each system
    dtype: str = ""  # of weights and activations; "" is bfloat16 on a GPU and float32 on a CPU


@dataclass(frozen=True)
class Suite:
    """Panels of cases, the question they answer, and its figures.

    device: "cuda" where it needs a GPU.
    min_samples: of a point, whatever the budget.
    trial: left out of `all`, and run when it is named: settings whose best is a default, or cases of minutes.
    budget_s: seconds of sampling a case, 0 for `BUDGETS_S`; a run of several suites has the highest.
    """

    name: str
    question: str
    panels: tuple[Panel, ...]
    figures: tuple[Figure, ...] = ()
    device: str = ""
    min_samples: int = FEWEST
    trial: bool = False
    budget_s: float = 0.0
