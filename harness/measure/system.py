"""Protocol between a system's adapter and the worker: the adapter builds a workload for each case."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from harness.measure.correctness import Checks
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.work import Work

REPLAYED = "replayed from a graph"  # `settings["prompt"]` of a request that replays its prompt


class Skip(Exception):
    """Raised by `build` for a case that the system cannot run. The message is one sentence."""


class NeedsFreshProcess(Exception):
    """Raised by `build` if only a new process can run the case, because an engine holds this one's memory."""


@dataclass(frozen=True)
class Input:
    """A tensor that `run` reads; the harness refills it in place with random values.

    fill: "normal" (standard deviation `scale`), "uniform" (0 to `scale`) or "tokens" (integers below `scale`).
    batch_axis, token_axis: the axes of sequences and of tokens; None if the tensor lacks one.
    """

    tensor: Any
    fill: str
    scale: float = 1.0
    batch_axis: int | None = 0
    token_axis: int | None = None

    def __post_init__(self) -> None:
        if self.fill not in ("normal", "uniform", "tokens"):
            raise ValueError(f"input: fill {self.fill!r}, must be normal, uniform or tokens")


@dataclass
class Workload:
    """The work of one case, ready to run.

    run: runs the timed work once and returns its outputs, a tensor or nested tuples, lists and dicts of tensors.
        Later calls must not read the outputs. On a GPU, `run` does not wait for the device; timing "graph" captures it.
        One call does `units` units of work, such as 16 generate steps, and samples are divided by `units`. With several
        units, the last output tensor is [units, batch, ...], or there is one tensor for each unit.
    tokens: tokens that one unit processes.
    capture: called once before `run`, while memory is counted, to capture the graphs that `run` replays.
    inputs: tensors that the harness refills between samples and before the checked calls.
    timed_check: called before each checked call; draws random sequences and stores their state before the call.
        It returns a function (outputs, number of calls since) that compares the outputs with the reference.
        The second checked call has the same recent tokens and another past. An engine's check is called after its last
        batch and gets None as outputs. timed_check is None without a reference.
    renews_past: whether `timed_check` gives each sequence another past; for work without an input with a token axis.
    `check`: the check of outputs before timing: compares them with the reference. None without a reference.
    engine_samples: for systems that time themselves; yields a list of milliseconds per unit for each batch.
        The first batches, at least one, are warm-up.
    engine_batch: for such a system; runs a batch and enters the context only for the part to profile.
        It returns the units of that part. For generate, the part is some of the steps in which all sequences generate.
    measured: called with the number of timed calls, or of an engine's samples; returns the work's metrics over them.
    metrics, settings: numbers and texts for the record; `flops` and `bytes` are per unit.
    work: least FLOPs and bytes per unit, by part (`harness.schema.work.PRODUCTS` and so on); {} if not counted.
    When memory is exhausted, the functions raise MemoryError or torch's OutOfMemoryError.
    """

    run: Callable[[], object]
    units: int = 1
    tokens: int = 0
    device: str = "cpu"
    capture: Callable[[], object] = lambda: None
    inputs: Mapping[str, Input] = field(default_factory=dict)
    timed_check: Callable[[Random], Callable[[Any, int], Checks]] | None = None
    renews_past: bool = False
    check: Callable[[], Checks] | None = None
    engine_samples: Callable[[Policy], Iterable[Sequence[float]]] | None = None
    engine_batch: Callable[[AbstractContextManager[object]], int] | None = None
    measured: Callable[[int], Mapping[str, float | None]] | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    work: Mapping[str, Work] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"workload: device {self.device!r}, must be cpu or cuda")
        if self.units < 1:
            raise ValueError(f"workload: units {self.units}, must be at least 1")


class SystemAdapter(Protocol):
    """Adapter of a system. One instance serves all cases of a worker.

    packages: distributions, in addition to torch, whose versions affect the system's speed.
    """

    packages: tuple[str, ...]

    def unavailable(self) -> str:
        """Return why the system cannot run here, in one sentence, or ""."""

    def build(self, case: Case) -> Workload:
        """Build the workload of a case. Raises Skip or NeedsFreshProcess."""
