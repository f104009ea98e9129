"""How do cases become records, whatever befalls their workers, and how does an interrupted run go on?"""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from typing import Any

from harness.case import Case
from harness.environment import around, snapshot
from harness.process import Launch, WorkerLost, WorkerProcess
from harness.reason import of_exception
from harness.record import Record, RecordError, RecordFile
from harness.timer import Policy

__all__ = ["Event", "Launch", "Probe", "Terminated", "probe", "run_cases"]

START_LIMIT_S = 300.0  # importing an engine from a cold disk takes minutes

Pair = tuple[str, str]  # (system, backend)


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: workers are ended and records kept as for Ctrl-C."""


@dataclass(frozen=True)
class Event:
    """What a display may show. kind: "plan" (first), "start" (of a case), "record" (its end).

    done, total: cases of this run, without the `kept` ones that an earlier run finished.
    """

    kind: str
    done: int
    total: int
    kept: int = 0
    case: Case | None = None
    record: Record | None = None


@dataclass(frozen=True)
class Probe:
    """Whether a system can run here and, if not, why; the versions and the environment it found.

    status: "" if it can, "skipped" if it says that it cannot, else how its worker was lost.
    """

    status: str
    reason: str
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def available(self) -> bool:
        return not self.status


def probe(launch: Launch, limit_s: float = START_LIMIT_S) -> Probe:
    """Start the worker of a system, ask whether it can run, and end it."""
    with _Slot(launch, limit_s) as slot:
        return slot.ready()[1]


def run_cases(
    cases: Iterable[Case],
    systems: Mapping[Pair, Launch],
    record_path: str | PathLike[str],
    *,
    resume: bool = False,
    time_limit_s: float = 600.0,
    start_limit_s: float = START_LIMIT_S,
    policy: Policy | None = None,
    on_event: Callable[[Event], object] = lambda event: None,
    skip: Callable[[Case, Sequence[Record]], str] = lambda case, earlier: "",
    verify_only: bool = False,
    profile_range: bool = False,
) -> list[Record]:
    """Run every case once and append its record to `record_path`; the records of all cases, earlier ones included.

    Cases are grouped by system, in order of appearance, and a worker is kept while it is healthy. A case that
    crashes, is killed, exceeds `time_limit_s` seconds, exhausts memory or misses its gate is a record too.
    resume: keep the cases that `record_path` already holds, whatever came of them, but for the skipped ones: their
    system may be there now. Without it a file with records is a RecordError.
    skip: asked before each case, with the records so far; a reason makes the case "skipped" without running it.
    verify_only stops after the gate. profile_range never times (see `measured_case.profile`).
    Raises RecordError for an unusable file, ValueError for a system without a launch. KeyboardInterrupt (SIGTERM
    raises its subclass Terminated) passes through once the worker has been killed; every finished case is in the file.
    """
    wanted = {case.key: case for case in cases}
    _refuse_unknown(wanted.values(), systems)
    request = {
        "policy": (policy or Policy()).to_dict(),
        "verify_only": verify_only,
        "profile_range": profile_range,
    }
    with _sigterm_raises(), RecordFile(record_path) as file:
        mode = "verify" if verify_only else "profile" if profile_range else ""
        earlier = _earlier(file, resume, mode)
        skipped = {record.case.key: record for record in earlier if record.status == "skipped"}
        kept = [record for record in earlier if record.status != "skipped"]
        finished = {record.case.key for record in kept}
        todo = [case for key, case in wanted.items() if key not in finished]
        run = _Run(file, request, mode, time_limit_s, start_limit_s, on_event, skip, kept, skipped, total=len(todo))
        run.emit("plan")
        for pair, group in _grouped(todo).items():
            run.group(systems[pair], group)
        return [record for record in run.records if record.case.key in wanted]


@dataclass
class _Run:
    """The state of one call of `run_cases`."""

    file: RecordFile
    request: dict[str, Any]
    mode: str
    time_limit_s: float
    start_limit_s: float
    on_event: Callable[[Event], object]
    skip: Callable[[Case, Sequence[Record]], str]
    records: list[Record]
    skipped: dict[str, Record]  # by an earlier run, by the key of the case
    total: int
    done: int = 0
    kept: int = 0

    def __post_init__(self) -> None:
        self.kept = len(self.records)

    def emit(self, kind: str, case: Case | None = None, record: Record | None = None) -> None:
        self.on_event(Event(kind, self.done, self.total, self.kept, case, record))

    def group(self, launch: Launch, cases: Sequence[Case]) -> None:
        """The cases of one system, one worker after another."""
        with _Slot(launch, self.start_limit_s) as slot:
            for case in cases:
                self.emit("start", case)
                record, healthy = self.attempt(slot, case)
                self.finish(record)
                if not healthy:
                    slot.discard()

    def attempt(self, slot: "_Slot", case: Case) -> tuple[Record, bool]:
        """The record of a case, and whether the worker can take another."""
        reason = self.skip(case, self.records)
        if reason:
            return self.unmeasured(case, "skipped", reason, slot.found), True
        worker, found = slot.ready()
        if worker is None:
            return self.unmeasured(case, found.status, found.reason, found), True
        return self.measured(slot, worker, case, found)

    def measured(self, slot: "_Slot", worker: WorkerProcess, case: Case, found: Probe) -> tuple[Record, bool]:
        """What the worker makes of a case, or the record of how it was lost."""
        started_at, start = _now(), time.monotonic()
        try:
            answer = self.asked(slot, worker, case)
            return Record.from_dict(answer["record"]), answer["healthy"]
        except WorkerLost as lost:
            record = self.unmeasured(case, lost.status, lost.reason, found)
        except (ValueError, KeyError) as error:  # a worker of another version of this program
            record = self.unmeasured(case, "failed", f"the worker's answer is unusable: {of_exception(error)}", found)
        return replace(record, started_at=started_at, wall_s=time.monotonic() - start), False

    def asked(self, slot: "_Slot", worker: WorkerProcess, case: Case) -> dict[str, Any]:
        """The worker's answer, or that of a new one where it asks for one; WorkerLost as the worker's."""
        request = {"do": "case", "case": case.to_dict(), **self.request}
        answer = worker.ask(request, self.time_limit_s)
        if not answer.get("fresh"):
            return answer
        slot.stop()
        replacement, found = slot.ready()
        if replacement is None:
            raise WorkerLost(found.status, found.reason)
        answer = replacement.ask(request, self.time_limit_s)
        if answer.get("fresh"):
            raise WorkerLost("failed", "a new worker of the system asked for another one")
        return answer

    def unmeasured(self, case: Case, status: str, reason: str, found: Probe | None) -> Record:
        """A record made here because no worker made it."""
        environment = found.environment if found and found.environment else snapshot()
        settings = {"mode": self.mode} if self.mode else {}
        paired = around(environment, environment)
        return Record(case, status, reason, settings=settings, environment=paired, started_at=_now())

    def finish(self, record: Record) -> None:
        """A case skipped again for the reason of before keeps its record, so that resuming leaves the file as it is."""
        before = self.skipped.get(record.case.key)
        if before and record.status == "skipped" and record.reason == before.reason:
            record = before
        else:
            self.file.append(record)
        self.records.append(record)
        self.done += 1
        self.emit("record", record.case, record)


class _Slot:
    """The place of one system's worker: filled when needed, emptied when the worker is not to be trusted."""

    def __init__(self, launch: Launch, limit_s: float) -> None:
        self.found: Probe | None = None
        self._launch, self._limit_s = launch, limit_s
        self._worker: WorkerProcess | None = None

    def ready(self) -> tuple[WorkerProcess | None, Probe]:
        """A worker that can run the system, or None; and what was found. A system once refused is not tried again."""
        if self._worker is None and (self.found is None or self.found.available):
            self.found = self._start()
        assert self.found is not None
        return self._worker, self.found

    def discard(self) -> None:
        """Kill the worker, which frees its memory."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = None

    def stop(self) -> None:
        """Let a healthy worker end, with time to clean up."""
        if self._worker is not None:
            self._worker.stop()
        self._worker = None

    def __enter__(self) -> "_Slot":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        self.discard()

    def _start(self) -> Probe:
        try:
            self._worker = WorkerProcess(self._launch)
            answer = self._worker.ask({"do": "probe"}, self._limit_s)
        except WorkerLost as lost:
            self.discard()
            return Probe(lost.status, f"the system could not be started: {lost.reason}")
        status = "" if answer["available"] else "skipped"
        if status:
            self.discard()
        return Probe(status, answer["reason"], answer["versions"], answer["environment"])


def _earlier(file: RecordFile, resume: bool, mode: str) -> list[Record]:
    """The records that a resumed run keeps; RecordError where going on would mix or overwrite them."""
    records = file.read()
    if records and not resume:
        count = f"{len(records)} record{'s' if len(records) > 1 else ''}"
        raise RecordError(f"{file.path}: already holds {count}; resume it (--resume) or name another file")
    for record in records:
        found = record.settings.get("mode", "")
        if found != mode:
            kinds = f"a {found or 'measuring'} run, not of a {mode or 'measuring'} run"
            raise RecordError(f"{file.path}: holds records of {kinds}; name another file")
    return records


def _refuse_unknown(cases: Iterable[Case], systems: Mapping[Pair, Launch]) -> None:
    for case in cases:
        if (case.system, case.backend) not in systems:
            known = ", ".join(f"{system}/{backend}" for system, backend in sorted(systems))
            raise ValueError(f"system {case.system}/{case.backend}: unknown; there are {known or 'none'}")


def _grouped(cases: Iterable[Case]) -> dict[Pair, list[Case]]:
    groups: dict[Pair, list[Case]] = {}
    for case in cases:
        groups.setdefault((case.system, case.backend), []).append(case)
    return groups


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does; left alone outside of the main thread, which cannot set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated("SIGTERM")

    earlier = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
