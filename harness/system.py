"""What must a system hand over to be measured? The protocol between an adapter and the worker."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from harness.case import Case
from harness.gate import Verdict
from harness.timer import Policy


class Skip(Exception):
    """Raised by `build` for a case that this system cannot run; the message, one sentence, says why."""


class NeedsFreshProcess(Exception):
    """Raised by `build` where this process can serve the case no longer and a new one can.

    An engine that gives its memory back only when its process ends is left that way.
    """


def _nothing() -> None:
    """What `close` does where there is nothing to free."""


@dataclass
class Workload:
    """The work of one case, ready to run on fresh random inputs.

    run: does the timed work once; called any number of times, on a GPU without waiting for the device, and for
        timing "graph" capturable. One call stands for `units` units (such as 16 generate steps) and a sample is
        divided by it. tokens: how many one unit processes.
    gate: compares outputs with the reference; None where there is nothing to compare with.
    engine_samples: for systems that time themselves: ms of one unit, at best yielded as they are taken.
    replayed: whether `run` is timed as replays of a CUDA graph although the case says "eager", as its launches take
        longer than its work; the adapter says so in `settings`, and profiles see `run` itself.
    metrics, settings: numbers and texts for the record. close: frees what the next case must not find.
    Running out of memory is a MemoryError or torch's OutOfMemoryError, whoever raises it.
    """

    run: Callable[[], object]
    units: int = 1
    tokens: int = 0
    device: str = "cpu"
    gate: Callable[[], Verdict] | None = None
    engine_samples: Callable[[Policy], Iterable[float]] | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    close: Callable[[], None] = _nothing
    replayed: bool = False

    def __post_init__(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"workload: device {self.device!r}, must be cpu or cuda")
        if self.units < 1:
            raise ValueError(f"workload: units {self.units}, must be at least 1")


class System(Protocol):
    """An adapter. One instance serves every case of a worker; its module imports only what it needs to say so."""

    def unavailable(self) -> str:
        """One sentence why the system cannot run here; empty where it can."""

    def versions(self) -> dict[str, str]:
        """Versions of what the environment does not name already."""

    def build(self, case: Case) -> Workload:
        """The workload of a case; Skip where it cannot be, NeedsFreshProcess where it cannot be here."""
