"""Types of a suite: panels of cases, the question that they answer, and its figures."""

from dataclasses import dataclass, field

from harness.measure.interval import FEWEST
from harness.schema.catalogue import FigureEntry as Figure


@dataclass(frozen=True)
class Panel:
    """Cases of one phase: every combination of systems, sizes, batches, contexts and options."""

    phase: str
    systems: tuple[str, ...]
    sizes: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    options: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    scope: str = "model"  # or "layer"
    l2: str = "warm"
    timing: str = ""  # "" for the system's own; see `cases.timing_of`
    # Whether batch or context grow until memory is exhausted: after the first case that does not fit, skip larger ones.
    grows: bool = False
    backends: tuple[str, ...] = ()  # () for all
    state_dtypes: tuple[str, ...] = ()  # () for the system's own
    dtype: str = ""  # of weights and activations; "" for bfloat16 on a GPU and float32 on a CPU


@dataclass(frozen=True)
class Suite:
    """Panels of cases, the question that they answer, and its figures.

    device: "cuda" for a suite that needs a GPU, "" for any.
    min_samples: fewest samples per case, whatever the budget.
    trial: whether it runs only by name, because it searches a system's default settings or its cases take minutes.
    budget_s: seconds of sampling per case, 0 for `BUDGETS_S`; a run of several suites takes the highest of theirs.
    """

    name: str
    question: str
    panels: tuple[Panel, ...]
    figures: tuple[Figure, ...] = ()
    device: str = ""
    min_samples: int = FEWEST
    trial: bool = False
    budget_s: float = 0.0
