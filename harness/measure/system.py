"""Interface of systems' adapters, which build a workload for each case."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from harness.measure.correctness import Checks
from harness.schema.case import Case
from harness.schema.work import Work

REPLAYED = "replayed from a graph"  # `settings["prompt"]` of a request that replays its prompt


class Skip(Exception):
    """Raised by `SystemAdapter.build` if the system cannot run the case, with the reason."""


class NeedsFreshProcess(Exception):
    """Raised by `SystemAdapter.build` if a case needs an engine that only a new process can start."""


@dataclass(frozen=True)
class Input:
    """A tensor that `Workload.run` reads, refilled in place by the harness.

    fill: "normal" (standard deviation `scale`), "uniform" (0 to `scale`) or "tokens" (integers below `scale`).
    batch_axis: the axis of sequences. token_axis: the axis of tokens. None: the tensor has no such axis.
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

    run: does the timed work once and returns its outputs: a tensor, or nested tuples, lists and dicts of tensors.
        Later calls must not read these outputs. On a GPU, `run` must not wait for the device. For timing "graph", a
        CUDA graph must be able to capture `run`.
    units: units of work in one call of `run`, such as 16 generate steps. Samples are stored in ms per unit. If `units`
        is above 1, `run` returns one tensor per unit, or its last output tensor has the shape [units, batch, ...].
    tokens: tokens that one unit processes, over all sequences. device: "cpu" or "cuda".
    capture: called before `run`; captures CUDA graphs that `run` and `measured` replay. Peak memory includes them.
    inputs: tensors that the harness refills with random values between samples and before the checked calls.
    timed_check: compares outputs of a timed sample with the reference; None without a reference.
        Before the sample, timed_check(rng) chooses sequences, stores their state and returns a function f.
        After the sample, f(outputs, calls) returns `Checks`. calls: number of calls of `run` in the sample.
        For an engine, the harness calls timed_check(rng)(None, 1) after the last batch.
    renews_past: for inputs without a token axis: whether timed_check(rng) draws the tokens that precede the timed ones.
        If so, the harness checks two samples, and fails if a sequence has the same outputs in both.
    check: compares outputs with the reference before timing; None without a reference.
    engine_samples: for a system that times itself (an engine); yields a list of milliseconds per unit for each batch.
        For timing, the first batches serve as warm-up.
    engine_batch: for an engine; runs a batch in which it enters the given context manager only around the units to
        profile. For generate, these are steps in which all sequences generate. Returns the number of these units.
    measured: called after timing with the number of timed calls (for an engine, of samples); returns further metrics.
    metrics: the record's metrics; `flops` and `bytes` are per unit. settings: the record's settings.
    work: least FLOPs and bytes per unit, by part (`PRODUCTS` to `OTHER` in `harness.schema.work`); {} if not counted.
    All functions above must raise MemoryError or torch's OutOfMemoryError when memory is exhausted.
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
    engine_samples: Callable[[], Iterable[Sequence[float]]] | None = None
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
    """Adapter of a system to the harness; one instance serves all cases of a worker.

    packages: names of installed packages whose versions are recorded, in addition to torch.
    """

    packages: tuple[str, ...]

    def unavailable(self) -> str:
        """Return in one sentence why the system cannot run on this machine; "" if it can."""

    def build(self, case: Case) -> Workload:
        """Return a case's workload. Raises Skip, or NeedsFreshProcess if it needs a new process."""
