"""What a call of the program asks for: typed once, kept in run.json, and written out again as its command."""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from bench.errors import UserError
from harness.schema.case import MOST, PHASES
from harness.workers.process import Limits

T = TypeVar("T")

LONGEST_BUDGET_S = 86_400.0  # of a case
LEAST_START_S = 300.0  # that a worker may take to start, whatever its cases may take
_DEVICES = ("auto", "cpu", "cuda")
_RETRIES = {"run": ("lost", "failed", "marked"), "profile": ("lost", "failed")}
# What of Slurm's options says who ran something and where.
_PRIVATE = re.compile(r"\b(account|comment|exclude|mail-user|nodefile|nodelist|reservation|wckey)=[^,]*")


class RunRequest(BaseModel):
    """The words of a command that plans, each in its type; UserError for one that cannot be.

    command: "run", "profile", "verify" or "ab". suites, systems, batch, context, phase: empty for the suites' own.
    sides, rounds: of "ab". way: how "profile" is to profile. budget_s: None for the device's. retry: which cases that
    have a record run again: "lost", "failed" or "marked"; where it is given, the run is resumed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str = "run"
    sides: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    context: tuple[int, ...] = ()
    phase: tuple[str, ...] = ()
    checkpoint: Path | None = None
    rounds: int = 1
    way: str = "auto"
    device: str = "auto"
    budget_s: float | None = None
    time_limit_s: float = 600.0
    gpus: str | None = None
    slurm: str | None = None
    resume: bool = False
    out: Path | None = None
    retry: str = "lost"

    def __init__(self, **values: Any) -> None:
        if values.get("retry") is None:
            values.pop("retry", None)
        else:
            values["resume"] = True
        try:
            super().__init__(**values)
        except ValidationError as error:
            first = error.errors()[0]
            cause = first.get("ctx", {}).get("error")
            where = ".".join(map(str, first["loc"]))
            raise (cause if isinstance(cause, UserError) else UserError(f"{where}: {first['msg']}")) from None

    @field_validator("suites", "systems", "batch", "context", "phase", mode="before")
    @classmethod
    def _parsed(cls, value: Any, info: Any) -> Any:
        if not isinstance(value, str):
            return value or ()
        option, parse = f"--{info.field_name}", _PARSERS.get(info.field_name, lambda _, word: word)
        return words(option, value, lambda word: parse(option, word))

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if device not in _DEVICES:
            raise UserError(f"--device {device}: must be auto, cpu or cuda")
        return device

    @field_validator("budget_s")
    @classmethod
    def _possible_budget(cls, budget_s: float | None) -> float | None:
        if budget_s is not None and not 0 < budget_s <= LONGEST_BUDGET_S:
            raise UserError(f"--budget {budget_s:g}: must be a number of seconds, at most {LONGEST_BUDGET_S:g}")
        return budget_s

    @field_validator("retry")
    @classmethod
    def _known_retry(cls, retry: str, info: Any) -> str:
        known = _RETRIES.get(info.data.get("command", ""), ("lost",))
        if retry not in known:
            raise UserError(f"--retry {retry}: must be {', '.join(known[:-1])} or {known[-1]}")
        return retry

    @classmethod
    def stored(cls, request: Mapping[str, Any]) -> "RunRequest":
        """What a run.json holds of it; what this version does not have is left out."""
        return cls(**{name: value for name, value in request.items() if name in cls.model_fields})

    @property
    def limits(self) -> Limits:
        """How long a case and the start of a worker may take."""
        return Limits(self.time_limit_s, max(LEAST_START_S, self.time_limit_s))

    @property
    def is_bare(self) -> bool:
        """Whether it names no cases: a run that is resumed goes on with all of its own."""
        return not (self.suites or self.systems or self.batch or self.context or self.phase)

    def words(self) -> list[str]:
        """The words on the command line that ask for it."""
        found = [self.command, *self.sides, *self.suites]
        for name, option in _OPTIONS.items():
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                found += [option] if value is True else [option, _written(value)]
        return found

    def published(self) -> "RunRequest":
        """Without what says who ran it and where, as a run keeps it.

        A checkpoint has its folder's name, an absolute path what is below the current folder, else its name, and an
        account or the nodes' names of Slurm are left out.
        """
        return self.model_copy(
            update={
                "sides": tuple(map(_place, self.sides)),
                "checkpoint": self.checkpoint and Path(self.checkpoint.resolve().name),
                "out": self.out and Path(_place(str(self.out))),
                "slurm": self.slurm and _PRIVATE.sub(r"\1=...", self.slurm),
            }
        )

    def to_continue(self, out: Path, retry: str = "lost") -> str:
        """The command that goes on with the run in `out`: with all of its cases, or those that a profiler was to see.

        retry: which cases that have a record run again.
        """
        again: dict[str, Any] = {"out": out, "resume": retry == "lost", "retry": retry}
        if self.command == "run":
            again |= {"suites": (), "systems": (), "batch": (), "context": (), "phase": ()}
            again |= {"device": "auto", "budget_s": None}  # which the run has, too
        return shlex.join(["ttt-bench", *self.model_copy(update=again).words()])


_OPTIONS = {
    "systems": "--systems",
    "batch": "--batch",
    "context": "--context",
    "phase": "--phase",
    "checkpoint": "--checkpoint",
    "rounds": "--rounds",
    "way": "--with",
    "device": "--device",
    "budget_s": "--budget",
    "time_limit_s": "--time-limit",
    "gpus": "--gpus",
    "slurm": "--slurm",
    "resume": "--resume",
    "out": "--out",
    "retry": "--retry",
}


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _place(path: str) -> str:
    """A path as it was given, and an absolute one from the current folder, or where it is not below that its name."""
    place = Path(path)
    if not place.is_absolute():
        return path
    here = Path.cwd()
    return str(place.relative_to(here)) if place.is_relative_to(here) else place.name or path


def words(option: str, text: str | None, parse: Callable[[str], T]) -> tuple[T, ...]:
    """The words of an option's comma-separated list, each parsed, once; none for None. UserError for an empty list."""
    if text is None:
        return ()
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise UserError(f"{option} {text!r}: is an empty list")
    return tuple(dict.fromkeys(map(parse, found)))


def one_of(option: str, word: str, known: Iterable[str]) -> str:
    """The word; UserError where it is none of those that are known."""
    if word not in known:
        raise UserError(f"{option} {word}: unknown; there are {', '.join(known)}")
    return word


def _count(option: str, word: str) -> int:
    try:
        value = int(word)
    except ValueError:
        raise UserError(f"{option} {word}: not a whole number{_as_number(word)}") from None
    if not 1 <= value <= MOST:
        raise UserError(f"{option} {word}: must be {'at least 1' if value < 1 else f'at most {MOST}'}")
    return value


def _as_number(word: str) -> str:
    """What is to be written for `2k`."""
    number, unit = word[:-1], word[-1:].lower()
    return f"; write {int(number) << 10}" if unit == "k" and number.isdecimal() and len(number) < 16 else ""


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "batch": _count,
    "context": _count,
    "phase": lambda option, word: one_of(option, word, PHASES),
}
