"""One measured, failed or skipped case: its schema and its JSON line."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

from harness.schema.case import Case
from harness.schema.reason import clipped, printable

SCHEMA_VERSION = 2
STATUSES = ("ok", "gate", "failed", "killed", "unstarted", "timeout", "oom", "skipped")
STOPS = ("", "interval", "budget", "count")
REASON_LIMIT = 2000  # bytes
MESSAGE_LIMIT = 5000  # characters; paths alone may have 4096
LEAST_MS, MOST_MS = 1e-9, 1e12  # of a sample that is not 0: readers divide by samples and add them up
NESTING_LIMIT = 16  # levels of `gate` and `environment`, which readers walk by recursion

_NESTING = (dict, list, tuple)  # what JSON nests
_WHOLE_LIMIT = 1 << 64  # of whole numbers, so that any may become a float
LINE_START = f'{{"schema":{SCHEMA_VERSION},'.encode()


class RecordError(ValueError):
    """A record or a record file that cannot be used; one printable sentence that says what is wrong and where."""

    def __init__(self, message: str) -> None:
        super().__init__(clipped(message, MESSAGE_LIMIT))


@dataclass
class Record:
    """The result of one case. Raises RecordError where a field has the wrong type or the fields contradict each other.

    repeat: which of the run's repeats, from 0; each is a fresh process.
    status: "ok"; "gate" (outputs differ from the reference); "failed" (raised, or exited); "killed" (by a signal);
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

    case: Case
    status: str
    reason: str = ""
    samples_ms: list[float] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    calls: int = 1
    tokens: int = 0
    stop: str = ""
    peak_memory_bytes: int | None = None
    gate: dict[str, Any] | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    wall_s: float = 0.0
    repeat: int = 0
    stages_s: dict[str, float] = field(default_factory=dict)
    earlier: list["Record"] = field(default_factory=list, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        self.validate()
        self._make_printable()
        self.reason = self.reason[:REASON_LIMIT].encode()[:REASON_LIMIT].decode("utf-8", "ignore")
        self.metrics = {name: _number(name, value) for name, value in self.metrics.items()}
        self.settings = {name: str(value) for name, value in self.settings.items()}

    def _make_printable(self) -> None:
        self.reason = printable(self.reason[:REASON_LIMIT])
        self.started_at = printable(self.started_at)
        self.metrics = {printable(name): value for name, value in self.metrics.items()}
        self.settings = {printable(name): printable(str(value)) for name, value in self.settings.items()}
        self.stages_s = {printable(name): seconds for name, seconds in self.stages_s.items()}
        self.environment = _printable_texts(self.environment)
        self.gate = _printable_texts(self.gate)

    def validate(self) -> None:
        """Raise RecordError where the record claims what it must not."""
        for name, (fits, expected) in _TYPES.items():
            value = getattr(self, name)
            if not fits(value):
                raise RecordError(f"record: {name} is {_shortened(value)}, must be {expected}")
        if self.status not in STATUSES:
            raise RecordError(f"record: status {_shortened(self.status)}, must be one of {', '.join(STATUSES)}")
        if self.stop not in STOPS:
            raise RecordError(f"record: stop {_shortened(self.stop)}, must be one of {', '.join(STOPS[1:])} or empty")
        if self.status != "ok" and not self.reason:
            raise RecordError(f"record: status {self.status!r} without a reason")
        if self.status != "ok" and self.samples_ms:
            raise RecordError(f"record: status {self.status!r} with samples; only 'ok' may be timed")
        _check_samples(self.samples_ms, self.throttled)
        _check_gate(self.gate)
        for name in ("gate", "environment"):
            if said := unfit(getattr(self, name)):
                raise RecordError(f"record: {name} {said}")
        _check_environment(self.environment)
        if self.status == "ok" and self.gate is not None and self.gate.get("passed") is not True:
            raise RecordError("record: status 'ok' with a gate that was not passed")

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values, the schema version first; a number that is not finite becomes None."""
        return finite(self._values())

    def to_json(self) -> str:
        """One line of JSON without its newline."""
        try:  # most records hold finite numbers alone, and looking for others takes longer than writing
            return json.dumps(self._values(), separators=(",", ":"), allow_nan=False)
        except ValueError:
            return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    def _values(self) -> dict[str, Any]:
        rest = {name: getattr(self, name) for name in _LINE if name != "case"}
        return {"schema": SCHEMA_VERSION, "case": self.case.to_dict(), **rest}

    @classmethod
    def from_json(cls, line: bytes) -> "Record":
        """The record of a line of JSON; ValueError or RecursionError where it is none, and see `from_dict`."""
        return cls.from_dict(json.loads(line))

    @classmethod
    def from_dict(cls, values: Any) -> "Record":
        """The record that `to_dict` wrote; RecordError (CaseError for its case) names what is wrong."""
        if not isinstance(values, Mapping) or "schema" not in values:
            raise RecordError("is not a record: no field 'schema'")
        if values["schema"] != SCHEMA_VERSION:
            raise RecordError(f"has schema {_shortened(values['schema'])}, this program reads schema {SCHEMA_VERSION}")
        for name in sorted(set(values) - {*_LINE, "schema"}):
            raise RecordError(f"has the unknown field {_shortened(name)}")
        for name in sorted({"case", "status"} - set(values)):
            raise RecordError(f"lacks the field {name!r}")
        rest = {name: value for name, value in values.items() if name not in ("schema", "case")}
        return cls(case=Case.from_dict(values["case"]), **rest)


_LINE = tuple(each.name for each in fields(Record) if each.init)  # the fields that a line has, in order


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_number(value: Any) -> bool:
    """A number that a float can hold; true and false are none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) < _WHOLE_LIMIT


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_seconds(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "reason": (_is_text, "text"),
    "samples_ms": (_is_list, "a list"),
    "throttled": (_is_list, "a list"),
    "calls": (lambda value: _is_whole(value) and value >= 1, "a whole number, at least 1"),
    "tokens": (lambda value: _is_whole(value) and value >= 0, "a whole number, at least 0"),
    "repeat": (lambda value: _is_whole(value) and value >= 0, "a whole number, at least 0"),
    "peak_memory_bytes": (lambda value: value is None or _is_whole(value), "a whole number or null"),
    "gate": (lambda value: value is None or _is_object(value), "an object or null"),
    "metrics": (_is_object, "an object"),
    "settings": (_is_object, "an object"),
    "environment": (_is_object, "an object"),
    "started_at": (_is_text, "text"),
    "wall_s": (_is_seconds, "a number, at least 0"),
    "stages_s": (
        lambda value: _is_object(value) and all(map(_is_seconds, value.values())),
        "an object of numbers, at least 0",
    ),
}


def _shortened(value: Any) -> str:
    return clipped(repr(value), 60)


def _check_samples(samples: list[Any], throttled: list[Any]) -> None:
    for sample in samples:
        if not _is_number(sample) or not (sample == 0 or LEAST_MS <= sample <= MOST_MS):
            said = f"must be 0 or a number of milliseconds from {LEAST_MS:g} to {MOST_MS:g}"
            raise RecordError(f"record: sample {_shortened(sample)}, {said}")
    if len(throttled) != len(samples):
        raise RecordError(f"record: {len(throttled)} throttle marks for {len(samples)} samples")
    for mark in throttled:
        if not isinstance(mark, bool):
            raise RecordError(f"record: throttle mark {_shortened(mark)}, must be true or false")


def _check_environment(environment: Mapping[str, Any]) -> None:
    """What readers look into has the shape that `environment.around` gave it; the rest may be anything."""
    for part in ("gpu", "cpu", "software"):
        value = environment.get(part)
        if value is None:
            continue
        if not _is_object(value):
            raise RecordError(f"record: environment has the {part} {_shortened(value)}, must be an object or null")
        for moment in ("before", "after"):
            if part != "software" and not _is_object(value.get(moment, {})):
                said = f"{part} with the {moment!r} {_shortened(value[moment])}"
                raise RecordError(f"record: environment has the {said}, must be an object")


def _check_gate(gate: Mapping[str, Any] | None) -> None:
    checks = [] if gate is None else gate.get("checks")
    if not isinstance(checks, list):
        raise RecordError(f"record: gate has the checks {_shortened(checks)}, must be a list")
    for check in checks:
        if not _is_check(check):
            said = "must be an object with a name and the numbers value and limit"
            raise RecordError(f"record: gate has the check {_shortened(check)}, {said}")


def _is_check(value: Any) -> bool:
    if not _is_object(value) or not _is_text(value.get("name")):
        return False
    return all(each in value and (value[each] is None or _is_number(value[each])) for each in ("value", "limit"))


def unfit(value: Any) -> str:
    """Why readers cannot hold JSON values: they are nested too deep, or an integer fits no float; "" where they can."""
    level = [value] if isinstance(value, _NESTING) else []
    for _ in range(NESTING_LIMIT):
        inner = [each for outer in level for each in (outer.values() if isinstance(outer, dict) else outer)]
        if any(isinstance(each, int) and not -_WHOLE_LIMIT < each < _WHOLE_LIMIT for each in inner):
            return "holds an integer of 2^64 or more"
        level = [each for each in inner if isinstance(each, _NESTING)]
    return f"is nested more than {NESTING_LIMIT} levels deep" if level else ""


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, Integral) and abs(int(value)) < _WHOLE_LIMIT:
        return int(value)
    if isinstance(value, Integral) or not isinstance(value, Real):
        raise RecordError(f"record: metric {_shortened(name)} is {_shortened(value)}, must be a number below 2^64")
    return float(value) if math.isfinite(value) else None


def finite(value: Any) -> Any:
    """JSON values without NaN and infinity, which JSON has not: they become None."""
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _printable_texts(value: Any) -> Any:
    """The value with every text in it, keys too, made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(name)): _printable_texts(inner) for name, inner in value.items()}
    return [_printable_texts(inner) for inner in value] if isinstance(value, list | tuple) else value
