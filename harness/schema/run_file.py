"""Contents of run.json: the planned cases, the requests, and the catalogue."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from harness.schema.case import Case, Device, Mode, Stored
from harness.schema.catalogue import Catalogue
from harness.schema.policy import Policy
from harness.schema.record import JsonObject, RecordError

FILE = "run.json"

Pair = tuple[str, str]  # (system, backend)


class RunError(RecordError):
    """Raised for an unusable or locked run folder or a lost GPU, with the reason in a sentence."""


@dataclass(frozen=True)
class Planned(Stored):
    """A case of a job, and how to run it.

    min_samples: fewest samples, summed over all repeats, even if they take longer than the run's budget.
    skip_after_oom: whether to skip the case if a case of smaller batch or context ran out of memory, time or KV cache.
    """

    case: Case
    min_samples: Annotated[int, Field(ge=1)] = 1
    skip_after_oom: bool = False

    def merged(self, other: "Planned") -> "Planned":
        """Merge two plans of a case: the larger `min_samples`, and `skip_after_oom` only if both set it."""
        samples = max(self.min_samples, other.min_samples)
        return Planned(self.case, samples, self.skip_after_oom and other.skip_after_oom)


@dataclass(frozen=True)
class Job(Stored):
    """All cases of one system on one backend, run by one worker at a time on one GPU."""

    system: str
    backend: str
    cases: tuple[Planned, ...]

    @property
    def name(self) -> str:
        return f"{self.system}-{self.backend}"

    @property
    def pair(self) -> Pair:
        return self.system, self.backend


def jobs_of(cases: Iterable[Planned]) -> tuple[Job, ...]:
    """Group cases into one job per system and backend; a case planned twice appears once."""
    jobs: dict[Pair, dict[str, Planned]] = {}
    for each in cases:
        own = jobs.setdefault((each.case.system, each.case.backend), {})
        own[each.case.key] = own.get(each.case.key, each).merged(each)
    return tuple(Job(*pair, tuple(own.values())) for pair, own in jobs.items())


@dataclass(frozen=True)
class PastRequest(Stored):
    """One call of `ttt-bench` that planned or resumed the run.

    at: time of the call, ISO 8601 in UTC.
    arguments: the command line. request: the parsed arguments by name; empty in version 0.1.
    commit: of this repository, "" if unknown. dirty: whether files differed from the commit, None if unknown.
    machine: device, device_kind, gpu, cpu and software of an `environment.snapshot()`.
    """

    at: str
    arguments: tuple[str, ...]
    commit: str
    dirty: bool | None
    machine: JsonObject
    request: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class RunFile(Stored):
    """Contents of run.json.

    repeats: how often each case is measured, in different processes.
    requests: the calls that planned or resumed the run, oldest first.
    mode: "measure" to time the cases, "verify" to only check outputs, "profile" to only profile.
    """

    tool: Literal["ttt-bench"] = field(default="ttt-bench", kw_only=True)
    schema: Literal[1] = field(default=1, kw_only=True)
    mode: Mode
    device: Device
    jobs: tuple[Job, ...]
    catalogue: Catalogue
    policy: Policy = field(default_factory=Policy)
    repeats: Annotated[int, Field(ge=1)] = 1
    requests: tuple[PastRequest, ...] = ()


RUN_FILE: TypeAdapter[RunFile] = TypeAdapter(RunFile)
