"""The request of one command: parsed, stored in run.json, and written as a command line."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.errors import UserError
from harness.schema.case import MOST
from harness.schema.reason import clipped
from harness.workers.process import Limits

LONGEST_BUDGET_S = 86_400.0
LEAST_START_S = 300.0  # a worker may take this long to start, even if the time limit per case is shorter
# Slurm options that identify a person or a host.
_PRIVATE = re.compile(r"\b(account|comment|exclude|mail-user|nodefile|nodelist|reservation|wckey)=[^,]*")
LISTS = ("suites", "systems", "batch", "context", "phase")
_OPTIONS = {"way": "--with", "budget_s": "--budget", "time_limit_s": "--time-limit"}  # other options: the field's name

Count = Annotated[int, Field(ge=1, le=MOST)]


class RunRequest(BaseModel):
    """The arguments of `run`, `verify`, `profile` or `ab`; UserError for bad values.

    suites: () for the device's default suite. systems, batch, context, phase: () for the suite's own.
    These five may also be comma-separated text. Without suites, the others select among a run's cases.
    sides: the two revisions of `ab`. rounds: processes per case and side of `ab`. way: the profiler (`--with`).
    budget_s: seconds of sampling per case; None: the default of the suite or, without one, of the device.
    retry: which finished cases to repeat: "failed" or "flagged"; "lost" repeats none. Passing it also sets `resume`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str = "run"
    sides: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    batch: tuple[Count, ...] = ()
    context: tuple[Count, ...] = ()
    phase: tuple[Literal["forward", "generate", "request"], ...] = ()
    checkpoint: Path | None = None
    rounds: int = 1
    way: str = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    budget_s: Annotated[float, Field(gt=0, le=LONGEST_BUDGET_S)] | None = None
    time_limit_s: Annotated[float, Field(gt=0)] = 600.0
    gpus: str | None = None
    slurm: str | None = None
    resume: bool = False
    out: Path | None = None
    retry: Literal["lost", "failed", "flagged"] = "lost"

    def __init__(self, **values: Any) -> None:
        given = {name: value for name, value in values.items() if value is not None}
        if "retry" in given:
            given["resume"] = True
        for name in LISTS:
            if isinstance(given.get(name), str):
                given[name] = split_list(option_of(name), given[name])
        try:
            super().__init__(**given)
        except ValidationError as error:
            first = error.errors()[0]
            must = first["msg"].replace("Input should be", "must be").partition(", unable")[0]
            value = clipped(str(first["input"]), 40)
            raise UserError(f"{option_of(str(first['loc'][0]))} {value}: {must}") from None

    @classmethod
    def stored(cls, request: Mapping[str, Any]) -> "RunRequest":
        """Return the request with these field values, such as run.json's; ignore unknown names."""
        return cls(**{name: value for name, value in request.items() if name in cls.model_fields})

    @property
    def limits(self) -> Limits:
        return Limits(self.time_limit_s, max(LEAST_START_S, self.time_limit_s))

    def arguments(self) -> list[str]:
        """Return the request as a command line: command, arguments and non-default options."""
        found = [self.command, *self.sides, *self.suites]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in ("command", "sides", "suites") and value != field.default:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
                text = f"{value:g}" if isinstance(value, float) else text
                found += [option_of(name)] if value is True else [option_of(name), text]
        return found

    def published(self) -> "RunRequest":
        """Return a copy for run.json: no absolute paths, and "..." for private --slurm values."""
        return self.model_copy(
            update={
                "checkpoint": self.checkpoint and Path(self.checkpoint.resolve().name),
                "out": Path(self.out.name) if self.out and self.out.is_absolute() else self.out,
                "slurm": self.slurm and _PRIVATE.sub(r"\1=...", self.slurm),
            }
        )

    def resume_command(self, out: Path, retry: str = "") -> str:
        """Return the command line that continues the run in `out`; `retry` replaces this request's, if any."""
        selects = self.resume and not retry and (self.retry != "lost" or not self.suites)  # among the run's cases
        retry = retry or self.retry
        changes: dict[str, Any] = {"out": out, "resume": retry == "lost", "retry": retry}
        if self.command == "run" and not selects:  # run.json has the cases, device and budget
            changes |= dict.fromkeys(LISTS, ()) | {"device": "auto", "budget_s": None}
        return shlex.join(["ttt-bench", *self.model_copy(update=changes).arguments()])


def option_of(name: str) -> str:
    """Return the command-line option that sets a field of `RunRequest`."""
    return _OPTIONS.get(name, f"--{name}")


def split_list(option: str, text: str | None) -> tuple[str, ...]:
    """Split comma-separated text into distinct words; () for None, UserError for no words."""
    if text is None:
        return ()
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise UserError(f"{option} {text!r}: is an empty list")
    return tuple(dict.fromkeys(found))
