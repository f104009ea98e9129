"""Types of a suite: panels of cases, the question that they answer, and its figures."""

from dataclasses import dataclass, field

from harness.measure.interval import FEWEST
from harness.schema.catalogue import FigureEntry as Figure


@dataclass(frozen=True)
class Panel:
    """Every combination of axes, for every system."""

    phase: str
    systems: tuple[str, ...]
    sizes: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    options: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    scope: str = "model"  # or "layer"
    l2: str = "warm"
    timing: str = ""  # "" for the system's own; see `cases.timing_of`
    # Batch or context grow until memory is exhausted; after the first that does not fit, larger ones are skipped.
    grows: bool = False
    backends: tuple[str, ...] = ()  # () for all
    state_dtypes: tuple[str, ...] = ()  # () for the system's own
    dtype: str = ""  # of weights and activations; "" for bfloat16 on a GPU and float32 on a CPU


@dataclass(frozen=True)
class Suite:
    """Panels of cases, the question that they answer, and its figures.

    device: "cuda" for a suite that needs a GPU.
    min_samples: per point, whatever the budget.
    trial: runs only by name: a search for a system's default settings, or cases that take minutes.
    budget_s: seconds of sampling per case, 0 for `BUDGETS_S`; a run of several suites takes the highest.
    """

    name: str
    question: str
    panels: tuple[Panel, ...]
    figures: tuple[Figure, ...] = ()
    device: str = ""
    min_samples: int = FEWEST
    trial: bool = False
    budget_s: float = 0.0
