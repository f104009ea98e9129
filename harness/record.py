"""One measured, failed or skipped case: its schema, its line in a file, and how that file is read and written."""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.case import Case, CaseError

SCHEMA_VERSION = 1
STATUSES = ("ok", "gate", "failed", "killed", "timeout", "oom", "skipped")
STOPS = ("", "interval", "budget", "count", "engine")
NESTING_LIMIT = 16  # levels of `gate` and `environment`, which readers walk by recursion

_NESTING = (dict, list, tuple)  # what JSON nests
_WHOLE_LIMIT = 1 << 64  # of whole numbers, so that any may become a float
_LINE_START = f'{{"schema":{SCHEMA_VERSION},'.encode()


class RecordError(ValueError):
    """A record or a record file that cannot be used; one sentence that says what is wrong and where."""


@dataclass
class Record:
    """What came of one case. Raises RecordError where a field has the wrong type or the fields contradict each other.

    status: "ok"; "gate" (outputs off the reference); "failed" (raised, or exited); "killed" (by a signal);
        "timeout"; "oom"; "skipped" (cannot run here). All but "ok" carry a reason and no samples.
    samples_ms: raw, each the milliseconds of one unit of work; `throttled` has a bool for each.
    tokens: how many tokens one sample stands for. stop: why sampling ended ("engine": the system timed itself).
    gate: `Verdict.to_dict()`. metrics: numbers; those that are not finite become None. settings: texts.
    environment: `environment.snapshot()` with what changes under "before" and "after".
    started_at: ISO 8601, UTC. wall_s: seconds that the case took, building and gate included.
    """

    case: Case
    status: str
    reason: str = ""
    samples_ms: list[float] = field(default_factory=list)
    throttled: list[bool] = field(default_factory=list)
    tokens: int = 0
    stop: str = ""
    peak_memory_bytes: int | None = None
    gate: dict[str, Any] | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    started_at: str = ""
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        self.validate()
        self.metrics = {name: _number(name, value) for name, value in self.metrics.items()}
        self.settings = {name: str(value) for name, value in self.settings.items()}

    def validate(self) -> None:
        """Raise RecordError where the record claims what it must not."""
        for name, (fits, expected) in _TYPES.items():
            value = getattr(self, name)
            if not fits(value):
                raise RecordError(f"record: {name} is {_shortened(value)}, must be {expected}")
        if self.status not in STATUSES:
            raise RecordError(f"record: status {self.status!r}, must be one of {', '.join(STATUSES)}")
        if self.stop not in STOPS:
            raise RecordError(f"record: stop {self.stop!r}, must be one of {', '.join(STOPS[1:])} or empty")
        if self.status != "ok" and not self.reason:
            raise RecordError(f"record: status {self.status!r} without a reason")
        if self.status != "ok" and self.samples_ms:
            raise RecordError(f"record: status {self.status!r} with samples; only 'ok' may be timed")
        _check_samples(self.samples_ms, self.throttled)
        _check_gate(self.gate)
        for name in ("gate", "environment"):
            if _is_deeper(getattr(self, name), NESTING_LIMIT):
                raise RecordError(f"record: {name} is nested more than {NESTING_LIMIT} levels deep")

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON values, the schema version first."""
        self.validate()
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "case"}
        return {"schema": SCHEMA_VERSION, "case": self.case.to_dict(), **_finite(values)}

    def to_json(self) -> str:
        """One line of JSON without its newline."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_dict(cls, values: Any) -> "Record":
        """The record that `to_dict` wrote; RecordError (CaseError for its case) names what is wrong."""
        if not isinstance(values, Mapping) or "schema" not in values:
            raise RecordError("is not a record: no field 'schema'")
        if values["schema"] != SCHEMA_VERSION:
            raise RecordError(f"has schema {values['schema']!r}, this program reads schema {SCHEMA_VERSION}")
        names = {each.name for each in fields(cls)}
        for name in sorted(set(values) - names - {"schema"}):
            raise RecordError(f"has the unknown field {name!r}")
        for name in sorted({"case", "status"} - set(values)):
            raise RecordError(f"lacks the field {name!r}")
        rest = {name: value for name, value in values.items() if name not in ("schema", "case")}
        return cls(case=Case.from_dict(values["case"]), **rest)


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


_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "reason": (_is_text, "text"),
    "samples_ms": (_is_list, "a list"),
    "throttled": (_is_list, "a list"),
    "tokens": (lambda value: _is_whole(value) and value >= 0, "a whole number, at least 0"),
    "peak_memory_bytes": (lambda value: value is None or _is_whole(value), "a whole number or null"),
    "gate": (lambda value: value is None or _is_object(value), "an object or null"),
    "metrics": (_is_object, "an object"),
    "settings": (_is_object, "an object"),
    "environment": (_is_object, "an object"),
    "started_at": (_is_text, "text"),
    "wall_s": (_is_number, "a number"),
}


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _check_samples(samples: list[Any], throttled: list[Any]) -> None:
    for sample in samples:
        if not _is_number(sample) or not math.isfinite(sample) or sample < 0:
            raise RecordError(f"record: sample {sample!r}, must be a finite number of milliseconds, at least 0")
    if len(throttled) != len(samples):
        raise RecordError(f"record: {len(throttled)} throttle marks for {len(samples)} samples")


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


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether more than `levels` objects and lists lie within each other."""
    if not isinstance(value, _NESTING):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(each, levels - 1) for each in inner if isinstance(each, _NESTING))


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, Integral) and abs(int(value)) < _WHOLE_LIMIT:
        return int(value)
    if isinstance(value, Integral) or not isinstance(value, Real):
        raise RecordError(f"record: metric {name!r} is {_shortened(value)}, must be a number below 2^64")
    return float(value) if math.isfinite(value) else None


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become None."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class RecordFile:
    """Records in a file, one JSON line each, only ever appended.

    As a context manager it holds the file for one writer: a second one gets a RecordError. A last line that a killed
    writer left incomplete is passed over in reading and cut off before the next line is written. Iterating gives every
    record; `read` leaves out what was skipped at first and tried again later.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd: int | None = None

    def __enter__(self) -> "RecordFile":
        with _as_record_error(self.path, "written"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Not O_TRUNC: nothing that is there may be lost. Not O_APPEND: a failed write is cut off again.
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(self._fd, self.path)
            self._repair(self._fd)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the next writer have the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def append(self, record: Record) -> None:
        """Write one whole line and wait until it is on the disk."""
        line = (record.to_json() + "\n").encode()
        if self._fd is None:
            with self:
                self._write(self._fd, line)  # type: ignore[arg-type]
        else:
            self._write(self._fd, line)

    def read(self) -> list[Record]:
        """The records in order; none where there is no file. RecordError names the file and the line.

        A skipped record counts only until its case is there again: a run that was resumed tried it anew.
        """
        records = list(self)
        last = {record.case.key: at for at, record in enumerate(records)}
        return [each for at, each in enumerate(records) if each.status != "skipped" or at == last[each.case.key]]

    def __iter__(self) -> Iterator[Record]:
        if not self.path.exists():
            return
        with _as_record_error(self.path, "read"), self.path.open("rb") as file:
            held: tuple[int, bytes] | None = None
            for number, line in enumerate(file, start=1):
                if held is not None:
                    yield _parse(self.path, *held)
                held = (number, line)
        if held is not None and not _is_torn(held[1]):
            yield _parse(self.path, *held)

    def _write(self, fd: int, line: bytes) -> None:
        end = os.lseek(fd, 0, os.SEEK_END)
        with _as_record_error(self.path, "written"):
            try:
                _write_all(fd, line)
                os.fsync(fd)
            except BaseException:
                os.ftruncate(fd, end)
                raise

    def _repair(self, fd: int) -> None:
        """Cut off a last line that is not whole; end one that lacks only its newline."""
        start, line = _last_line(fd)
        if _is_torn(line):
            os.ftruncate(fd, start)
        elif line and not line.endswith(b"\n"):
            _parse(self.path, None, line)
            os.lseek(fd, 0, os.SEEK_END)
            _write_all(fd, b"\n")


def read_records(paths: Iterable[str | os.PathLike[str]]) -> list[Record]:
    """The records of files, and of all .jsonl files below folders.

    RecordError for a path that is not there, and where no path has a record.
    """
    records: list[Record] = []
    places = [Path(path) for path in paths]
    for path in places:
        if not path.exists():
            raise RecordError(f"{path}: no such file or folder")
        files = sorted(path.rglob("*.jsonl")) if path.is_dir() else [path]
        for file in files:
            records += RecordFile(file).read()
    if not records:
        raise RecordError(f"no records in {', '.join(map(str, places))}")
    return records


def _is_torn(line: bytes) -> bool:
    """Whether a last line is the beginning of a record whose writer died; never true of what is not ours."""
    if not line.startswith(_LINE_START[: len(line)]):
        return False
    try:
        json.loads(line)
    except ValueError:
        return bool(line)
    except RecursionError:  # whole as far as it was read, and nothing that `to_json` wrote
        return False
    return False


def _parse(path: Path, number: int | None, line: bytes) -> Record:
    where = f"{path}, {'last line' if number is None else f'line {number}'}"
    try:
        values = json.loads(line)
    except ValueError:
        raise RecordError(f"{where}: is not JSON, so this is not a record file or it is damaged") from None
    except RecursionError:
        raise RecordError(f"{where}: is nested too deep for a record") from None
    try:
        return Record.from_dict(values)
    except (CaseError, RecordError) as error:
        raise RecordError(f"{where}: {error}") from None
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise RecordError(f"{where}: a field has the wrong type: {error}") from None


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordError(f"{path}: another run is writing to it; wait for it or name another file") from None
    except OSError:
        # Some network file systems have no locks; a run there is worth more than the guard against a second one.
        return


def _last_line(fd: int) -> tuple[int, bytes]:
    """(offset, bytes) of the last line; (0, b"") of an empty file."""
    end = start = os.lseek(fd, 0, os.SEEK_END)
    tail = b""
    while start > 0:
        step = min(start, 1 << 16)
        start -= step
        tail = os.pread(fd, step, start) + tail
        newline = tail.rfind(b"\n", 0, len(tail) - 1)
        if newline >= 0:
            return end - len(tail) + newline + 1, tail[newline + 1 :]
    return 0, tail


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


@contextmanager
def _as_record_error(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RecordError(f"{path}: cannot be {verb}: {error.strerror or error}") from None
