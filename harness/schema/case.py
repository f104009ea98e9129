"""A case: one point to measure, hashable, with a key computed from its fields."""

import hashlib
import json
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, model_serializer
from pydantic.dataclasses import dataclass

MOST = (1 << 63) - 1  # the largest signed 64-bit integer, which a column of a data frame can hold
STEPS = 128  # new tokens of a request without the option `steps`

Device = Literal["cpu", "cuda"]
Mode = Literal["measure", "verify", "profile"]  # time cases, only check them, or profile them
PHASES = ("forward", "generate", "request")


# Refuse unknown fields, values of another type, and NaN and infinity, which JSON lacks.
STORED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Stored:
    """Base of dataclasses stored as JSON; pydantic checks types when reading, not in constructors."""

    __pydantic_config__: ClassVar[ConfigDict] = STORED


def one_of(*words: str) -> Any:
    """Return a pydantic field for text that must equal one of `words`."""
    return Field(pattern=f"^({'|'.join(words)})$")


Name = Annotated[str, Field(min_length=1)]
Scalar = str | int | float | bool


def _scalar(value: Any) -> Any:
    if not isinstance(value, str) and not (isinstance(value, int | float) and -MOST <= value <= MOST):
        raise ValueError("must be text, a finite number of 64 bits or a bool")
    return value


_Value = Annotated[Scalar, PlainValidator(_scalar)]


def _sorted_options(options: Any) -> Any:
    try:
        return tuple(sorted(dict(options).items()))
    except TypeError:
        raise ValueError("must be an object or pairs of name and value") from None


@dataclass(frozen=True, config=STORED)
class Case:
    """One point to measure; ValueError if a field is invalid.

    phase: "forward" (a prompt), "generate" (steady-state steps) or "request" (a prompt, then steps).
    size: name of the model size, such as "1.3b". batch: number of sequences.
    context: tokens of each prompt; for "generate", tokens of each sequence before the timed steps.
    dtype: dtype of weights and activations. state_dtype: dtype of the recurrent state or KV cache, "" for the default.
    timing: "eager" (ordinary calls), "graph" (replays of a CUDA graph) or "engine" (the system times itself).
    l2: "warm", or "cold" to flush the L2 cache before each timed call.
    options: (name, value) pairs that differ from their defaults, sorted by name.
    """

    system: Name
    backend: Name
    size: Name
    phase: Annotated[str, one_of(*PHASES)]
    batch: Annotated[int, Field(ge=1, le=MOST)]
    context: Annotated[int, Field(ge=0, le=MOST)]
    dtype: Name = "bfloat16"
    state_dtype: str = ""
    timing: Annotated[str, one_of("eager", "graph", "engine")] = "eager"
    l2: Annotated[str, one_of("warm", "cold")] = "warm"
    options: Annotated[tuple[tuple[str, _Value], ...], BeforeValidator(_sorted_options)] = ()

    @cached_property
    def key(self) -> str:
        """Hash of the fields that differ from their defaults, in 16 hexadecimal digits."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def system_backend(self) -> str:
        return f"{self.system}/{self.backend}"

    @property
    def label(self) -> str:
        """The case in a few words: `ttt-linear/triton 1.3b generate B=1 T=2048 bfloat16 graph`."""
        words = [self.system_backend, self.size, self.phase, f"B={self.batch}", f"T={self.context}"]
        words += [self.dtype, *([f"state {self.state_dtype}"] if self.state_dtype not in ("", self.dtype) else [])]
        words += [self.timing, *(["cold"] if self.l2 == "cold" else [])]
        return " ".join([*words, *(f"{name}={value}" for name, value in self.options)])

    def option(self, name: str, default: Any = None) -> Any:
        return dict(self.options).get(name, default)

    @property
    def new_tokens(self) -> int:
        return int(self.option("steps", STEPS))

    @model_serializer
    def to_dict(self) -> dict[str, Any]:
        """Return {field: JSON value} for fields that differ from their defaults; `options` becomes an object."""
        known = self.__dataclass_fields__.values()
        values = {f.name: value for f in known if (value := getattr(self, f.name)) != f.default}
        return values | ({"options": dict(self.options)} if self.options else {})
