"""A record of one case's result, and the JSON Lines file of a job's records."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from harness.schema.case import Case, one_of
from harness.schema.catalogue import OLDER_METRICS
from harness.schema.files import read_regular, refusing
from harness.schema.reason import clipped, invalid, printable

SCHEMA_VERSION = 4  # of records
_OLDEST = 2  # oldest version that can be read
SAMPLE_DIGITS = 7  # significant digits of stored samples; further ones are noise
_OLDER_NAMES = {"gated": "checked", "gate_limits": "check_limits"} | OLDER_METRICS
NOT_JSON = "is not JSON"
MESSAGE_LIMIT = 5000  # characters; paths alone may have 4096

STATUSES = ("ok", "incorrect", "failed", "killed", "unstarted", "timeout", "oom", "skipped")
_LINE_START = b'{"schema":'
T = TypeVar("T")


def utc_now() -> str:
    """Return the time in UTC as records store it: `2026-01-31T12:00:00+00:00`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class RecordError(ValueError):
    """Raised if records cannot be read, stored or reported; the message is one printable sentence."""

    def __init__(self, message: str) -> None:
        super().__init__(clipped(message, MESSAGE_LIMIT))


def parsed(adapter: TypeAdapter[T], text: bytes | str, refusal: type[RecordError] = RecordError) -> T:
    """Return the object that `adapter` reads from JSON, or raise `refusal` with the first error."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        broken = error.errors()[0]["type"] == "json_invalid"
        raise refusal(NOT_JSON if broken else invalid(error)) from None


def json_values(value: Any) -> Any:
    """Copy a nested value for JSON: make text printable, replace NaN and infinity by None."""
    value = value.item() if hasattr(value, "item") else value  # a NumPy number or a tensor has `item`
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(name)): json_values(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


JsonObject = Annotated[dict[str, Any], BeforeValidator(json_values)]
Text = Annotated[str, AfterValidator(printable)]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0)]


def _under_todays_names(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {_OLDER_NAMES.get(name, name): value for name, value in values.items()}


_Metrics = Annotated[
    dict[Text, Annotated[int | float | None, BeforeValidator(json_values)]], BeforeValidator(_under_todays_names)
]
_Settings = Annotated[dict[Text, Annotated[Text, BeforeValidator(str)]], BeforeValidator(_under_todays_names)]
# An older version becomes the current one; other validators translate older names.
_Schema = Annotated[int, Field(ge=_OLDEST, le=SCHEMA_VERSION), AfterValidator(lambda older: SCHEMA_VERSION)]
_Status = Annotated[str, BeforeValidator(lambda text: "incorrect" if text == "gate" else text), one_of(*STATUSES)]


@dataclass(config={"strict": True, "extra": "forbid"})
class Record:
    """Result of one case; ValueError if fields are wrong or contradict each other.

    repeat: number of the repeat, from 0; each repeat measures the case in a fresh process.
    status: one of `STATUSES`, explained in harness/README.md. All except "ok" have a reason and no samples.
    samples_ms: raw samples in milliseconds per unit of work, such as a generate step, with `SAMPLE_DIGITS` digits.
    throttled: for each sample, whether the GPU was throttled.
    calls: units of work in one sample. tokens: tokens of one unit, over all sequences.
    stop: why sampling ended: "interval" (the median was precise), "budget" (of time) or "count" (of samples).
    `check`: `Checks.to_dict()` of the outputs before timing and of the timed call; None without checks.
    metrics: further results; NaN and infinity become None. settings: the system's settings, as text.
    environment: `environment.snapshot()` with readings "before" the case and "after" the last sample.
        The throttle_reasons in "after" are those of all samples.
    started_at: ISO 8601, UTC. wall_s: seconds of the whole case. stages_s: seconds of its stages build, `check`,
        warm_up and sample; earlier versions also had "reference".
    earlier: previous records of this case and repeat in the file, oldest first; not stored.
    """

    schema: _Schema = field(default=SCHEMA_VERSION, kw_only=True)
    case: Case
    status: _Status
    reason: Text = ""
    samples_ms: list[_Time] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    calls: Annotated[int, Field(ge=1)] = 1
    tokens: _Count = 0
    stop: Annotated[str, one_of("", "interval", "budget", "count")] = ""
    peak_memory_bytes: _Count | None = None
    check: Annotated[JsonObject | None, Field(validation_alias=AliasChoices("check", "gate"))] = None
    metrics: _Metrics = field(default_factory=dict)
    settings: _Settings = field(default_factory=dict)
    environment: JsonObject = field(default_factory=dict)
    started_at: Text = ""
    wall_s: _Time = 0.0
    repeat: _Count = 0
    stages_s: dict[Text, _Time] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.earlier: list[Record] = []
        if self.status != "ok" and not self.reason:
            raise ValueError(f"status {self.status!r} without a reason")
        if self.status != "ok" and self.samples_ms:
            raise ValueError(f"status {self.status!r} with samples; only 'ok' may be timed")
        if len(self.throttled) != len(self.samples_ms):
            raise ValueError(f"{len(self.throttled)} throttle flags for {len(self.samples_ms)} samples")
        if self.status == "ok" and self.check is not None and self.check.get("passed") is not True:
            raise ValueError("status 'ok' with a failed check")

    def to_json(self) -> str:
        """Return the record as a line of JSON without newline, the schema version first."""
        return _ADAPTER.dump_json(self).decode()

    @classmethod
    def from_json(cls, line: bytes | str) -> "Record":
        """Return the record in a line of JSON. Raises RecordError if the line is invalid."""
        return parsed(_ADAPTER, line)


_ADAPTER: TypeAdapter[Record] = TypeAdapter(Record)


@dataclass(frozen=True)
class RecordFile:
    """A JSON Lines file of records; only one process at a time may append.

    An incomplete last line, left by a killed writer, is ignored by `read` and removed by `append`.
    """

    path: Path

    def append(self, record: Record) -> None:
        """Append a record as one line and wait until it is on disk, or raise RecordError."""
        with refusing(self.path, "written", RecordError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = read_regular(self.path) if self.path.exists() else b""
            complete = _complete(content)
            with self.path.open("ab") as file:
                file.truncate(min(len(complete), len(content)))
                file.write(complete[len(content) :] + record.to_json().encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def read(self) -> list[Record]:
        """Return all records in file order; [] if the file is missing.

        Raises RecordError with the file and the line if a record is invalid.
        """
        with refusing(self.path, "read", RecordError):
            try:
                lines = _complete(read_regular(self.path)).split(b"\n")[:-1]
            except FileNotFoundError:
                return []
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(Record.from_json(line))
            except RecordError as error:
                again = "; delete that line, then continue with --resume" if NOT_JSON in str(error) else ""
                raise RecordError(f"{self.path}, line {number}: {error}{again}") from None
        return records


def _complete(content: bytes) -> bytes:
    """Return `content` without a killed writer's partial last record, ending in a newline."""
    last = content[content.rfind(b"\n") + 1 :]
    if not last:
        return content
    if last.startswith(_LINE_START[: len(last)]):
        try:
            json.JSONDecoder().raw_decode(last.decode(errors="replace"))
        except ValueError:
            return content[: -len(last)]
    return content + b"\n"
