"""What run.json holds: what was asked for and planned, where, by which commit, and the catalogue."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from harness.schema.case import Case, Device, Mode
from harness.schema.catalogue import FORBID_EXTRA, Catalogue
from harness.schema.files import create_atomically, read_regular, refusing, write_atomically
from harness.schema.policy import MOST_SAMPLES, Policy
from harness.schema.reason import clipped, invalid
from harness.schema.record import RecordError, unfit

SCHEMA_VERSION = 1
TOOL = "ttt-bench"
FILE = "run.json"
_REPEATS_LIMIT = 1000  # processes of a case
_SAID_LIMIT = 400  # characters of what is wrong with a run.json
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")  # what may become part of a file's name

Pair = tuple[str, str]  # (system, backend)


class RunError(RecordError):
    """A run folder that cannot be used; one sentence that says what is wrong and where."""


@dataclass(frozen=True)
class Planned:
    """A case of a job. min_samples: never fewer, whatever the budget, over all repeats.

    grows: one of several that grow until memory ends; those beyond the first that does not fit are skipped.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    case: Case
    min_samples: int = 1
    grows: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.min_samples <= MOST_SAMPLES:
            raise ValueError(f"min_samples is {_shortened(self.min_samples)}, must be from 1 to {MOST_SAMPLES}")

    def merged(self, other: "Planned") -> "Planned":
        """What both of one case ask for; one that either wants in any case is not skipped for what others found."""
        return Planned(self.case, max(self.min_samples, other.min_samples), self.grows and other.grows)


@dataclass(frozen=True)
class Job:
    """One system on one backend with its cases in order: the unit of a worker, a file, a GPU and a cluster's task."""

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    system: str
    backend: str
    cases: tuple[Planned, ...]

    def __post_init__(self) -> None:
        for part in (self.system, self.backend):
            if not _SAFE_NAME.fullmatch(part):
                raise ValueError(f"job {_shortened(part)}: that cannot be part of a file's name")
        for planned in self.cases:
            if (planned.case.system, planned.case.backend) != (self.system, self.backend):
                raise ValueError(f"job {self.name}: has a case of {planned.case.system_backend}")

    @property
    def name(self) -> str:
        """SYSTEM-BACKEND, as its file is called."""
        return f"{self.system}-{self.backend}"

    @property
    def pair(self) -> Pair:
        """(system, backend)."""
        return self.system, self.backend


@dataclass(frozen=True)
class PastRequest:
    """One call of the program that planned or resumed the run: when, its arguments, commit and machine.

    request: what the arguments ask for, by name; empty in runs of version 0.1.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    at: str
    arguments: tuple[str, ...]
    commit: str
    dirty: bool | None
    machine: dict[str, Any]
    request: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("machine", "request"):
            if said := unfit(getattr(self, name)):
                raise ValueError(f"request: {name} {said}")


@dataclass(frozen=True)
class RunFile:
    """What run.json holds, its tool and schema first.

    device: the kind that its cases are of. repeats: fresh processes for each case.
    """

    __pydantic_config__: ClassVar[Any] = FORBID_EXTRA

    tool: str = field(default=TOOL, kw_only=True)
    schema: int = field(default=SCHEMA_VERSION, kw_only=True)
    mode: Mode
    device: Device
    jobs: tuple[Job, ...]
    catalogue: Catalogue
    policy: Policy = field(default_factory=Policy)
    repeats: int = 1
    requests: tuple[PastRequest, ...] = ()

    def __post_init__(self) -> None:
        for name, count in Counter(job.name for job in self.jobs).items():
            if count > 1:
                raise ValueError(f"two jobs are called {name}")
        known: set[str] = set()
        for planned in (planned for job in self.jobs for planned in job.cases):
            if planned.case.key in known:
                raise ValueError(f"the case {planned.case.label} is planned twice")
            known.add(planned.case.key)
        if not 1 <= self.repeats <= _REPEATS_LIMIT:
            raise ValueError(f"repeats is {_shortened(self.repeats)}, must be from 1 to {_REPEATS_LIMIT}")
        for suite in self.catalogue.suites:
            for key in suite.cases:
                if key not in known:
                    raise ValueError(f"suite {suite.name!r} has the case {_shortened(key)}, which no job has")


_ADAPTER: TypeAdapter[RunFile] = TypeAdapter(RunFile)


def read_run_file(folder: Path) -> RunFile:
    """What the run.json of a folder holds, checked; RunError where it is none."""
    return _parsed(folder / FILE, _json_of(folder))


def write_run_file(folder: Path, file: RunFile, *, new: bool = False) -> bool:
    """Write run.json whole or not at all; ValueError for a number that JSON has not, or OSError.

    new: write it where there is none alone; whether it was written.
    """
    text = json.dumps(_ADAPTER.dump_python(file, mode="json"), separators=(",", ":"), allow_nan=False) + "\n"
    if new:
        return create_atomically(folder / FILE, text)
    write_atomically(folder / FILE, text)
    return True


def _json_of(folder: Path) -> Any:
    path = folder / FILE
    with refusing(path, "read", RunError):
        if not folder.is_dir():
            raise RunError(
                f"{folder}: {'is not a folder' if folder.exists() else 'no such folder'}; name that of a run"
            )
        if not path.exists():
            raise RunError(f"{folder}: is not a run: it has no {FILE}")
        data = read_regular(path)
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        raise RunError(f"{path}: is not JSON, so this is no run or it is damaged") from None


def _finite(text: str) -> float:
    """The number; ValueError for NaN and the infinities, which JSON has not and no run.json holds."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is no number of JSON")
    return value


def _shortened(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or value.bit_length() < 256 else "a very large number"
    return clipped(text, 60)


def _parsed(path: Path, values: Any) -> RunFile:
    if not isinstance(values, Mapping) or "tool" not in values or "schema" not in values:
        raise RunError(f"{path}: is not a run file: it does not say its tool and schema")
    if values["tool"] != TOOL:
        raise RunError(f"{path}: was made by {str(values['tool'])[:60]!r}, this program reads runs of {TOOL!r}")
    if values["schema"] != SCHEMA_VERSION:
        raise RunError(f"{path}: has schema {str(values['schema'])[:20]}, this program reads schema {SCHEMA_VERSION}")
    if "device" not in values:  # as of runs until 2026-11-26
        raise RunError(
            f'{path}: does not say its device; write `"device": "cuda"` into it, or "cpu", as its records say'
        )
    try:
        return _ADAPTER.validate_json(json.dumps(values))
    except ValidationError as error:
        said = invalid(error)
    except (ValueError, RecursionError) as error:
        said = str(error)
    raise RunError(f"{path}: {clipped(said, _SAID_LIMIT)}")
