"""What a system hands over to be measured: the protocol between an adapter and the worker."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from harness.measure.gate import Verdict
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.work import Work

REPLAYED = "replayed from a graph"  # what `settings["prompt"]` says of a request whose prompt is


class Skip(Exception):
    """Raised by `build` for a case that this system cannot run; the message, one sentence, says why."""


class NeedsFreshProcess(Exception):
    """Raised by `build` where this process cannot serve the case any more but a new one can.

    An engine that gives its memory back only when its process ends is left that way.
    """


def _nothing() -> None:
    """What `close` does where there is nothing to free."""


@dataclass(frozen=True)
class Input:
    """A tensor that `run` reads, and how the harness fills it anew, in place, with values nobody can foresee.

    fill: "normal" (standard deviation `scale`), "uniform" (from 0 to `scale`), or "tokens" (whole numbers below
    `scale`). batch_axis, token_axis: which axes are the sequences and the tokens of the case; None for none.
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

    run: does the timed work once and returns its outputs: a tensor, or a tuple, list or dict of tensors that no later
        call reads. Called any number of times, on a GPU without waiting for the device, and for timing "graph"
        capturable. One call stands for `units` units (such as 16 generate steps) and a sample is divided by it. With
        more than one unit the last tensor is [units, batch, ...], or there is one tensor for each unit.
    tokens: how many tokens one unit processes.
    capture: called once before `run`, where a case is timed, checked or profiled: captures what `run` replays, whose
        memory counts then.
    inputs: what `run` reads and the harness renews between samples and before the checked call.
    witness: called with random numbers just before the last timed call, when inputs are renewed: draws the sequences
        to compare and keeps what they start from. It returns what is called after `calls` timed calls of `run` with
        the outputs of the last one, and compares them with the reference. None where there is none. It is called for
        two checked calls: the second has the same recent tokens, and another past.
    renews_past: whether `witness` gives each sequence another past, where that is no input with a token axis.
    gate: compares outputs with the reference before anything is timed; None where there is nothing to compare with.
    engine_samples: for systems that time themselves: ms of one unit, all that one batch gave at a time, as it ends. The
        first batches, for as long as a warm-up lasts and at least one, are not counted.
    engine_batch: for such a system: runs a batch, inside of the context only what it takes samples of (of generate,
        some of the steps in which every sequence takes part), and returns how many units those are; a profiler sees
        them alone.
    measured: asked after sampling for metrics that the work found itself in so many last calls of `run`, or samples of
        its engine.
    metrics, settings: numbers and texts for the record; `flops` and `bytes` are those of one unit.
    work: of one unit too, by its parts (`harness.schema.work.PRODUCTS` and so on); {} where not counted.
    close: frees what the next case must not find.
    Running out of memory is a MemoryError or torch's OutOfMemoryError, whoever raises it.
    """

    run: Callable[[], object]
    units: int = 1
    tokens: int = 0
    device: str = "cpu"
    capture: Callable[[], None] = _nothing
    inputs: Mapping[str, Input] = field(default_factory=dict)
    witness: Callable[[Random], Callable[[Any, int], Verdict]] | None = None
    renews_past: bool = False
    gate: Callable[[], Verdict] | None = None
    engine_samples: Callable[[Policy], Iterable[Sequence[float]]] | None = None
    engine_batch: Callable[[AbstractContextManager[object]], int] | None = None
    measured: Callable[[int], Mapping[str, float | None]] | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    work: Mapping[str, Work] = field(default_factory=dict)
    close: Callable[[], None] = _nothing

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"workload: device {self.device!r}, must be cpu or cuda")
        if self.units < 1:
            raise ValueError(f"workload: units {self.units}, must be at least 1")


class SystemAdapter(Protocol):
    """An adapter. One instance serves every case of a worker; its module imports only what it needs to say so.

    packages: the distributions, beside torch, on whose versions its numbers depend.
    """

    packages: tuple[str, ...]

    def unavailable(self) -> str:
        """One sentence why the system cannot run here; empty where it can."""

    def build(self, case: Case) -> Workload:
        """The workload of a case; Skip where it cannot be, NeedsFreshProcess where it cannot be here."""
