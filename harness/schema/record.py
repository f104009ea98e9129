"""One measured, failed or skipped case: its schema and its JSON line."""

import json
import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from harness.schema.case import Case, one_of
from harness.schema.reason import clipped, invalid, printable

SCHEMA_VERSION = 3
REASON_LIMIT = 2000  # bytes
MESSAGE_LIMIT = 5000  # characters; paths alone may have 4096
LEAST_MS, MOST_MS = 1e-9, 1e12  # of a sample that is not 0: readers divide by samples and add them up
NESTING_LIMIT = 16  # levels of `gate` and `environment`, which readers walk by recursion

STATUSES = ("ok", "incorrect", "failed", "killed", "unstarted", "timeout", "oom", "skipped")
_WHOLE_LIMIT = 1 << 64  # integers below it fit a float
LINE_START = b'{"schema":'


class RecordError(ValueError):
    """A record or a record file that cannot be used; one printable sentence that says what is wrong and where."""

    def __init__(self, message: str) -> None:
        super().__init__(clipped(message, MESSAGE_LIMIT))


def unfit(value: Any) -> str:
    """Why readers cannot hold JSON values: they are nested too deep, or an integer fits no float; "" where they can."""
    level = [value]
    for _ in range(NESTING_LIMIT):
        inner = [each for outer in level for each in (outer.values() if isinstance(outer, dict) else outer)]
        if any(isinstance(each, int) and not -_WHOLE_LIMIT < each < _WHOLE_LIMIT for each in inner):
            return "holds an integer of 2^64 or more"
        level = [each for each in inner if isinstance(each, dict | list | tuple)]
        if not level:
            return ""
    return f"is nested more than {NESTING_LIMIT} levels deep"


def _printable_tree(value: Any) -> Any:
    """The value with every text in it, keys too, made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(name)): _printable_tree(inner) for name, inner in value.items()}
    return [_printable_tree(inner) for inner in value] if isinstance(value, list | tuple) else value


def _tree(value: Any) -> Any:
    if isinstance(value, dict) and (said := unfit(value)):
        raise ValueError(said)
    return _printable_tree(value) if isinstance(value, dict) else value


def _sample(value: float) -> float:
    if not (value == 0 or LEAST_MS <= value <= MOST_MS):
        raise ValueError(f"must be 0 or a number of milliseconds from {LEAST_MS:g} to {MOST_MS:g}")
    return value


def _metric(value: Any) -> Any:
    """A Python number for one of NumPy; None for one that is not finite."""
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, int) and not -_WHOLE_LIMIT < value < _WHOLE_LIMIT:
        raise ValueError("must be a number below 2^64")
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Check(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    name: str
    value: float | None
    limit: float | None


class _Verdict(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    checks: list[_Check]


class _Part(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    before: dict[str, Any]
    after: dict[str, Any]


class _Environment(TypedDict, total=False):
    """What readers look into; the rest may be anything."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    gpu: _Part | None
    cpu: _Part | None
    software: dict[str, Any] | None


Text = Annotated[str, AfterValidator(printable)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=_WHOLE_LIMIT)]
_Reason = Annotated[
    str, AfterValidator(lambda text: printable(text[:REASON_LIMIT]).encode()[:REASON_LIMIT].decode("utf-8", "ignore"))
]


def _version(value: Any) -> Any:
    """Schema 2 is read as 3: only its status "gate" is now "incorrect"."""
    if isinstance(value, int) and value not in (2, SCHEMA_VERSION):
        raise ValueError(f"must be 2 or {SCHEMA_VERSION}")
    return SCHEMA_VERSION if value == 2 else value


_Schema = Annotated[int, BeforeValidator(_version)]
_Status = Annotated[str, BeforeValidator(lambda text: "incorrect" if text == "gate" else text), one_of(*STATUSES)]


@dataclass(config={"strict": True, "extra": "forbid"})
class Record:
    """The result of one case. Raises pydantic's ValidationError where a field is wrong or fields contradict each other.

    repeat: which of the run's repeats, from 0; each is a fresh process.
    status: "ok"; "incorrect" (outputs differ from the reference); "failed" (raised, or exited); "killed" (by a signal);
        "unstarted" (its worker could not be started); "timeout"; "oom"; "skipped" (cannot run here). All but "ok"
        carry a reason and no samples.
    samples_ms: raw, each the milliseconds of one unit of work; `throttled` has a bool for each.
    calls: units of work that one sample spans. tokens: tokens of one unit. stop: why sampling ended.
    gate: `Verdict.to_dict()`. metrics: numbers; those that are not finite become None. settings: texts.
    environment: `environment.snapshot()` with what changes under "before" and "after", the end of the last sample; the
        GPU's throttle_reasons there are those of all samples.
    started_at: ISO 8601, UTC. wall_s: seconds that the case took; stages_s: those of its stages, such as "build",
        "gate", "cool_down" (of a GPU that heat slowed down), "warm_up", "sample", "reference" (its answer for what was
        timed) and "check" (the rest of the check).
    earlier: what its file has of this case and repeat before it, oldest first; no part of its own line.
    """

    schema: _Schema = field(default=SCHEMA_VERSION, kw_only=True)
    case: Case
    status: _Status
    reason: _Reason = ""
    samples_ms: list[Annotated[float, AfterValidator(_sample)]] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    calls: Annotated[int, Field(ge=1, lt=_WHOLE_LIMIT)] = 1
    tokens: _Count = 0
    stop: Annotated[str, one_of("", "interval", "budget", "count")] = ""
    peak_memory_bytes: _Count | None = None
    gate: (
        Annotated[dict[str, Any], AfterValidator(TypeAdapter(_Verdict).validate_python), BeforeValidator(_tree)] | None
    ) = None
    metrics: dict[Text, Annotated[int | float | None, BeforeValidator(_metric)]] = field(default_factory=dict)
    settings: dict[Text, Annotated[Text, BeforeValidator(str)]] = field(default_factory=dict)
    environment: Annotated[
        dict[str, Any], AfterValidator(TypeAdapter(_Environment).validate_python), BeforeValidator(_tree)
    ] = field(default_factory=dict)
    started_at: Text = ""
    wall_s: Seconds = 0.0
    repeat: _Count = 0
    stages_s: dict[Text, Seconds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.earlier: list[Record] = []
        if self.status != "ok" and not self.reason:
            raise ValueError(f"status {self.status!r} without a reason")
        if self.status != "ok" and self.samples_ms:
            raise ValueError(f"status {self.status!r} with samples; only 'ok' may be timed")
        if len(self.throttled) != len(self.samples_ms):
            raise ValueError(f"{len(self.throttled)} throttle marks for {len(self.samples_ms)} samples")
        if self.status == "ok" and self.gate is not None and self.gate.get("passed") is not True:
            raise ValueError("status 'ok' with a gate that was not passed")

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values, the schema version first; a number that is not finite becomes None."""
        return json.loads(self.to_json())  # type: ignore[no-any-return]

    def to_json(self) -> str:
        """One line of JSON without its newline."""
        return _ADAPTER.dump_json(self).decode()

    @classmethod
    def from_dict(cls, values: Any) -> "Record":
        """The record that `to_dict` wrote; see `from_json`."""
        return cls.from_json(json.dumps(values))

    @classmethod
    def from_json(cls, line: bytes | str) -> "Record":
        """The record of a line of JSON; RecordError names what is wrong."""
        try:
            return _ADAPTER.validate_json(line)
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":
                raise RecordError("is not JSON, so this is not a record or it is damaged") from None
            raise RecordError(invalid(error)) from None


_ADAPTER: TypeAdapter[Record] = TypeAdapter(Record)


def finite(value: Any) -> Any:
    """JSON values without NaN and infinity, which JSON has not: they become None."""
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
