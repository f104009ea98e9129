"""One thing to measure: frozen, hashable, serialisable, with a key made of what changes the work."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property
from typing import Any, Literal

from harness.schema.reason import clipped

Scalar = str | int | float | bool

PHASES = ("forward", "generate", "request")
MOST = (1 << 63) - 1  # what a column of a table holds
STEPS = 128  # new tokens of a request that does not say how many
Device = Literal["cpu", "cuda"]
Mode = Literal["measure", "verify", "profile"]  # what is done with cases: time them, check them alone, or profile them
TIMINGS = ("eager", "graph", "engine")
CACHE_STATES = ("warm", "cold")

_CHOICES = {"phase": PHASES, "timing": TIMINGS, "l2": CACHE_STATES}
TEXT_LIMIT = 1000  # characters of a field or of an option
_REQUIRED_TEXTS = ("system", "backend", "size", "dtype")


class CaseError(ValueError):
    """A case that cannot be; the message names the field and its value, on one printable line."""

    def __init__(self, message: str) -> None:
        super().__init__(clipped(message, 1000))


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    phase: "forward" (a prompt), "generate" (steady-state steps), "request" (prompt then steps, as a whole).
    context: tokens of the prompt, or tokens already in the state of a generate step.
    state_dtype: type of the recurrent state or cache, "" for the system's own.
    timing: "eager" launches, CUDA "graph" replays, or "engine" where the system times itself.
    l2: cache state before each sample, "warm" or "cold".
    options: further axes that differ from their default, such as (("mini_batch", 32),); kept sorted by name, so that
        order does not tell cases apart.
    Raises CaseError where a field cannot be.
    """

    system: str
    backend: str
    size: str
    phase: str
    batch: int
    context: int
    dtype: str = "bfloat16"
    state_dtype: str = ""
    timing: str = "eager"
    l2: str = "warm"
    options: tuple[tuple[str, Scalar], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", _sorted_options(self.options))
        for name in self.__dataclass_fields__:
            if name != "options":
                _check_field(name, getattr(self, name))

    @cached_property
    def key(self) -> str:
        """16 hexadecimal digits, equal for equal cases in every process and version of Python.

        A field at its default is not in it, so that a new field changes no key that is already in a file.
        """
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def system_backend(self) -> str:
        """SYSTEM/BACKEND, as the command line names them."""
        return f"{self.system}/{self.backend}"

    @property
    def label(self) -> str:
        """The case in a few words, for people."""
        words = [self.system_backend, self.size, self.phase, f"B={self.batch}", f"T={self.context}"]
        words += [self.dtype, *([f"state {self.state_dtype}"] if self.state_dtype not in ("", self.dtype) else [])]
        words += [self.timing, *(["cold"] if self.l2 == "cold" else [])]
        return " ".join([*words, *(f"{name}={value}" for name, value in self.options)])

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option, or `default` where the case has none of that name."""
        return dict(self.options).get(name, default)

    @property
    def new_tokens(self) -> int:
        """How many tokens a request adds to each prompt: its option `steps`."""
        return int(self.option("steps", STEPS))

    def to_dict(self) -> dict[str, Any]:
        """The case as JSON values, without the fields at their default; `options` becomes an object."""
        known = self.__dataclass_fields__.values()
        values = {f.name: value for f in known if (value := getattr(self, f.name)) != f.default}
        return values | ({"options": dict(self.options)} if self.options else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Case":
        """The case that `to_dict` wrote; CaseError names a field that is missing, unknown or wrong."""
        if not isinstance(values, Mapping):
            raise CaseError(f"case: is {type(values).__name__}, must be an object")
        known = cls.__dataclass_fields__  # not `fields`, which takes long for ten thousand cases
        for name in sorted(values.keys() - known.keys()):
            raise CaseError(f"case: unknown field {name!r}")
        for name in sorted(name for name in known.keys() - values.keys() if known[name].default is MISSING):
            raise CaseError(f"case: field {name!r} is missing")
        return cls(**values)


def _sorted_options(options: Any) -> tuple[tuple[str, Scalar], ...]:
    pairs = _pairs(options)
    for name, value in pairs:
        finite = math.isfinite(value) if isinstance(value, float) else not isinstance(value, int) or abs(value) <= MOST
        if not isinstance(name, str) or not isinstance(value, Scalar) or not finite:
            raise CaseError(
                f"case: field 'options': {name!r} is {value!r}, must be text, a number of 64 bits or a bool"
            )
        if max(len(name), len(str(value))) > TEXT_LIMIT:
            raise CaseError(f"case: field 'options': {name[:40]!r} is longer than {TEXT_LIMIT} characters")
        if not name.isprintable() or not str(value).isprintable():
            raise CaseError(f"case: field 'options': {name!r} is {value!r}, must be printable text")
    if len(dict(pairs)) < len(pairs):
        raise CaseError(f"case: field 'options' names an option twice: {pairs}")
    return tuple(sorted(pairs))


def _pairs(options: Any) -> list[tuple[Any, Any]]:
    try:
        return [(name, value) for name, value in (options.items() if isinstance(options, Mapping) else options)]
    except (TypeError, ValueError):
        raise CaseError(f"case: field 'options' is {options!r}, must be an object or pairs of name and value") from None


def _check_field(name: str, value: Any) -> None:
    if name in ("batch", "context"):
        _check_count(name, value, at_least=1 if name == "batch" else 0)
    elif not isinstance(value, str):
        raise CaseError(f"case: field {name!r} is {value!r}, must be text")
    elif len(value) > TEXT_LIMIT:
        raise CaseError(f"case: field {name!r} is {value[:40]!r}…, longer than {TEXT_LIMIT} characters")
    elif not value.isprintable():
        raise CaseError(f"case: field {name!r} is {value!r}, must be printable text")
    elif name in _CHOICES and value not in _CHOICES[name]:
        raise CaseError(f"case: field {name!r} is {value!r}, must be one of {', '.join(_CHOICES[name])}")
    elif name in _REQUIRED_TEXTS and not value:
        raise CaseError(f"case: field {name!r} is empty")


def _check_count(name: str, value: Any, at_least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CaseError(f"case: field {name!r} is {value!r}, must be a whole number")
    if value < at_least:
        raise CaseError(f"case: field {name!r} is {value}, must be at least {at_least}")
    if value > MOST:
        raise CaseError(f"case: field {name!r} is beyond 2^63 - 1")
