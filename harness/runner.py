"""Run a run's jobs in workers: one record for each case, whatever becomes of its worker, and resumable."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, Literal

from harness.claims import Holder
from harness.environment import around, snapshot
from harness.machine_load import LoadMeter
from harness.nvml import VARIABLE as GPU_VARIABLE
from harness.process import RUN_VARIABLE, Launch, Stopped, WorkerLost, WorkerProcess, end_marked
from harness.reason import of_exception
from harness.record import Record, RecordError
from harness.record_file import RecordFile
from harness.run import Job, Planned, Run, latest
from harness.timer import Policy

__all__ = [
    "HERE",
    "Event",
    "Launch",
    "Limits",
    "Place",
    "PlaceLost",
    "Probe",
    "Session",
    "Terminated",
    "probe",
    "run_jobs",
]

Pair = tuple[str, str]  # (system, backend)
Retry = Literal["lost", "failed"]
Skip = Callable[[Planned, Sequence[Record]], str]

PROBE_CORES = 8  # from which probes of one interpreter are spread over several processes
TRIES = 2  # of a case whose worker was killed or could not be started, over all resumptions
LOST = ("killed", "unstarted")


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived: workers are ended and records kept as for Ctrl-C."""


@dataclass(frozen=True)
class Limits:
    """Seconds: for one case, its model and its checks included; for the start of a worker."""

    case_s: float = 600.0
    start_s: float = 300.0  # importing an engine from a cold disk takes minutes


@dataclass(frozen=True)
class Place:
    """Where workers run: what is added to their environment and, of a GPU, what their records must say of it.

    name: as a display calls it, "" where there is only one. device_id: of its GPU, "" where it is not known.
    is_there: whether the GPU still answers, asked after a case that did not succeed.
    """

    name: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    device_id: str = ""
    is_there: Callable[[], bool] = lambda: True


HERE = Place()


class PlaceLost(Exception):
    """The GPU of a place is gone; what it was measuring has no record and can be measured elsewhere."""


@dataclass(frozen=True)
class Event:
    """What a display may show. kind: "plan" (first), "left" (what an earlier run left behind was ended), "start" (of
    a case), "record" (its end), "lost" (a GPU is gone).

    done, total: cases of this run, without the `kept` ones that an earlier run finished. message: of "left" and
    "lost". place: where the case runs, "" where there is only one.
    """

    kind: str
    done: int
    total: int
    kept: int = 0
    planned: Planned | None = None
    record: Record | None = None
    message: str = ""
    place: str = ""


@dataclass(frozen=True)
class Probe:
    """Whether a system can run here and, if not, why; the versions and the environment it found.

    status: "" if it can, "skipped" if it says that it cannot, else "unstarted".
    """

    status: str
    reason: str
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def available(self) -> bool:
        return not self.status


def probe(launches: Sequence[Launch], limit_s: float = Limits.start_s) -> list[Probe]:
    """Ask systems whether they can run, interpreters side by side and those of one interpreter in one process.

    Where there are cores for it, adapters of other modules have other processes: importing an engine takes most of it.
    """
    found: dict[int, Probe] = {}
    groups: dict[tuple, list[int]] = {}
    many = len(os.sched_getaffinity(0)) >= PROBE_CORES if hasattr(os, "sched_getaffinity") else False
    for number, launch in enumerate(launches):
        module = launch.entry.partition(":")[0] if many else ""
        key = (tuple(launch.command), launch.root, tuple(sorted(launch.env.items())), module)
        groups.setdefault(key, []).append(number)
    threads = [
        threading.Thread(target=_probe_together, args=(launches, group, found, limit_s)) for group in groups.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(launches))]


def _probe_together(launches: Sequence[Launch], group: list[int], found: dict[int, Probe], limit_s: float) -> None:
    worker: WorkerProcess | None = None
    for number in group:
        try:
            worker = worker or WorkerProcess(replace(launches[number], entry=""))
            found[number] = _probe_of(worker.ask({"do": "probe", "entry": launches[number].entry}, limit_s))
        except WorkerLost as lost:
            found[number] = Probe("unstarted", f"the system could not be started: {lost.reason}")
            if worker is not None:
                worker.kill()
            worker = None
    if worker is not None:
        worker.stop()


def _probe_of(answer: Mapping[str, Any]) -> Probe:
    """The probe in a worker's answer; WorkerLost where it is none."""
    try:
        status = "" if answer["available"] is True else "skipped"
        return Probe(status, str(answer["reason"]), dict(answer["versions"]), dict(answer["environment"]))
    except (KeyError, TypeError, ValueError):
        raise WorkerLost("failed", "the worker's answer to a probe is unusable") from None


def run_jobs(
    run: Run,
    launches: Mapping[Pair, Launch],
    *,
    jobs: Sequence[Job] | None = None,
    repeats: Sequence[int] | None = None,
    limits: Limits | None = None,
    retry: Retry = "lost",
    on_event: Callable[[Event], object] = lambda event: None,
    skip: Skip = lambda planned, earlier: "",
) -> list[Record]:
    """Run what is not finished of `jobs` and `repeats` (all of the run's); append each record to its job's file.

    A worker is kept while it is healthy. A case that crashes, is killed, exceeds its limit, exhausts memory or misses
    a check is a record too. What is finished is kept; skipped cases are tried again, as their system may be there now,
    and those whose worker was killed or could not be started, `TRIES` times. retry: "failed" tries again whatever is
    not ok. skip: asked before each case, with its job's records so far; a reason skips it.
    With repeats, every case runs once in a fresh process of its job before any runs a second time.
    Returns the last record of each case and repeat. Raises RecordError for an unusable file, ValueError for a job
    without a launch. KeyboardInterrupt (SIGTERM raises its subclass Terminated) passes through once the worker has
    been killed; every finished case is in its file.
    """
    options: dict[str, Any] = {"limits": limits, "retry": retry, "on_event": on_event, "skip": skip}
    with session(run, launches, jobs=jobs, repeats=repeats, **options) as work:
        for repeat in work.repeats:
            for job in work.jobs:
                work.run_job(job, [repeat])
        return work.finished()


@contextmanager
def session(
    run: Run,
    launches: Mapping[Pair, Launch],
    *,
    jobs: Sequence[Job] | None = None,
    repeats: Sequence[int] | None = None,
    limits: Limits | None = None,
    retry: Retry = "lost",
    on_event: Callable[[Event], object] = lambda event: None,
    skip: Skip = lambda planned, earlier: "",
    task: Holder | None = None,
) -> Iterator["Session"]:
    """The jobs of a run for whoever runs them in which order and where; arguments and errors as of `run_jobs`.

    task: one of several tasks of the run, which must have claimed the jobs; without it the run is held alone.
    """
    jobs = run.jobs if jobs is None else jobs
    repeats = tuple(range(run.file.repeats) if repeats is None else repeats)
    for job in jobs:
        if job.pair not in launches:
            raise ValueError(f"system {'/'.join(job.pair)}: unknown; there are {_names(launches)}")
    with _signals_raise(), run.held(task):
        todo = {job.name: _Todo.of(run, job, repeats, retry) for job in jobs}
        total = sum(len(each.pending) for each in todo.values())
        display = _Display(on_event, total, kept=sum(each.kept for each in todo.values()))
        mark = f"{run.folder.resolve()}" + (f" {task.name}" if task else "")
        left = end_marked(RUN_VARIABLE, mark)
        if left:
            display.emit("left", message=f"ended what an earlier run had left running: {', '.join(left)}")
        display.emit("plan")
        yield Session(run, tuple(jobs), repeats, launches, limits or Limits(), display, skip, todo, mark)


@dataclass
class Session:
    """What the jobs of one call share. Several threads may run one job each; `stop` ends them all."""

    run: Run
    jobs: tuple[Job, ...]
    repeats: tuple[int, ...]
    launches: Mapping[Pair, Launch]
    limits: Limits
    display: "_Display"
    skip: Skip
    todo: Mapping[str, "_Todo"]
    mark: str
    stop: threading.Event = field(default_factory=threading.Event)

    def run_job(self, job: Job, repeats: Iterable[int] | None = None, place: Place = HERE) -> None:
        """Run what is left of a job. PlaceLost where the place's GPU is gone, Stopped once `stop` is set."""
        launch = self.launches[job.pair]
        launch = replace(launch, env={**launch.env, **place.env, RUN_VARIABLE: self.mark})
        for repeat in self.repeats if repeats is None else repeats:
            if any(at == repeat for _, at in self.todo[job.name].pending):
                with self.run.record_file(job) as file:
                    _JobRun(self, job, launch, file, repeat, place).cases()

    def finished(self) -> list[Record]:
        """The last record of each case and repeat of the run; RecordError where a job lacks one."""
        for job in self.jobs:
            self.refuse_loss(job)
        return self.run.records()

    def refuse_loss(self, job: Job) -> None:
        """RecordError where a job that is done lacks a record: what was appended last may have been removed since."""
        there = sum(record.repeat in self.repeats for record in latest(job, self.run.job_records(job)))
        lost = len(job.cases) * len(self.repeats) - there
        if lost:
            path = self.run.record_file(job).path
            raise RecordError(f"{path}: lost {lost} record{'' if lost == 1 else 's'} while the run was writing to it")


@dataclass(frozen=True)
class _Todo:
    """What is left of a job: (case, repeat) pairs in order, each until it has its record; how many are kept."""

    pending: list[tuple[Planned, int]]
    kept: int

    @classmethod
    def of(cls, run: Run, job: Job, repeats: Sequence[int], retry: Retry) -> "_Todo":
        records = run.job_records(job)
        last = {(record.case.key, record.repeat): record for record in records}
        tries = Counter((record.case.key, record.repeat) for record in records if record.status in LOST)

        def is_finished(planned: Planned, repeat: int) -> bool:
            record = last.get((planned.case.key, repeat))
            if record is None or record.status == "skipped":
                return False
            if retry == "failed" and record.status != "ok":
                return False
            return record.status not in LOST or tries[planned.case.key, repeat] >= TRIES

        every = [(planned, repeat) for repeat in repeats for planned in job.cases]
        pending = [each for each in every if not is_finished(*each)]
        return cls(pending, len(every) - len(pending))


@dataclass
class _Display:
    """Counts what is done and tells whoever shows it."""

    on_event: Callable[[Event], object]
    total: int
    kept: int
    done: int = 0
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def emit(
        self,
        kind: str,
        planned: Planned | None = None,
        record: Record | None = None,
        message: str = "",
        place: str = "",
    ) -> None:
        with self.one_at_a_time:
            self.done += kind == "record"
            self.on_event(Event(kind, self.done, self.total, self.kept, planned, record, message, place))


@dataclass
class _JobRun:
    """One job in one repeat: its cases in one worker after another."""

    session: Session
    job: Job
    launch: Launch
    file: RecordFile
    repeat: int
    place: Place
    records: list[Record] = field(default_factory=list)

    def cases(self) -> None:
        """Run the pending ones in order."""
        session, run = self.session, self.session.run
        self.records = [each for each in latest(self.job, run.job_records(self.job)) if each.repeat == self.repeat]
        before = {record.case.key: record for record in self.records}
        pending = session.todo[self.job.name].pending
        with _Slot(self.launch, session.limits.start_s, session.stop.is_set) as slot:
            for planned in [planned for planned, at in pending if at == self.repeat]:
                if session.stop.is_set():
                    raise Stopped
                session.display.emit("start", planned, place=self.place.name)
                record, healthy = self._attempt(slot, planned)
                if record.status not in ("ok", "gate") and not self.place.is_there():
                    raise PlaceLost
                self._finish(planned, record, before.get(planned.case.key))
                pending.remove((planned, self.repeat))
                if not healthy:
                    slot.discard()

    def _attempt(self, slot: "_Slot", planned: Planned) -> tuple[Record, bool]:
        """The record of a case, and whether the worker can take another."""
        reason = self.session.skip(planned, self.records)
        if reason:
            return self._unmeasured(planned, "skipped", reason, slot.found), True
        worker, found = slot.ready()
        if worker is None:
            return self._unmeasured(planned, found.status, found.reason, found), True
        return self._measured(slot, worker, planned, found)

    def _measured(self, slot: "_Slot", worker: WorkerProcess, planned: Planned, found: Probe) -> tuple[Record, bool]:
        """What the worker makes of a case, or the record of how it was lost."""
        started_at, start, load = _now(), time.monotonic(), LoadMeter()
        try:
            answer = self._asked(slot, worker, planned)
            record = self._checked(planned, answer)
            environment = record.environment
            cpu = {**(environment.get("cpu") or {}), **load.reading()}
            record = replace(record, repeat=self.repeat, environment={**environment, "cpu": cpu})
            return record, bool(answer.get("healthy"))
        except WorkerLost as lost:
            record = self._unmeasured(planned, lost.status, lost.reason, found)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"the worker's answer is unusable: {of_exception(error)}"
            record = self._unmeasured(planned, "failed", reason, found)
        return replace(record, started_at=started_at, wall_s=time.monotonic() - start), False

    def _checked(self, planned: Planned, answer: Mapping[str, Any]) -> Record:
        """The record in an answer; ValueError where it is not one of this case, or claims more time than has passed."""
        record = Record.from_dict(answer["record"])
        if record.case != planned.case:
            raise ValueError(f"it is of another case: {record.case.label}")
        device_id = (record.environment.get("gpu") or {}).get("device_id")
        if self.place.device_id and device_id and device_id != self.place.device_id:
            raise ValueError(f"it was measured on the GPU {device_id}, not on {self.place.device_id}")
        claimed_s = sum(record.samples_ms) * record.calls / 1e3
        if claimed_s > answer["waited_s"] * 1.01 + 0.1 and planned.case.timing != "engine":
            raise ValueError(
                f"its samples add up to {claimed_s:.3g} s, more than the {answer['waited_s']:.3g} s it took"
            )
        why = self.session.run.foreign(replace(record, repeat=self.repeat), self.job)
        if why:
            raise ValueError(why)
        return record

    def _asked(self, slot: "_Slot", worker: WorkerProcess, planned: Planned) -> dict[str, Any]:
        """The worker's answer, or that of a new one where it asks for one; WorkerLost as the worker's."""
        for _ in range(2):
            start = time.monotonic()
            answer = worker.ask(self._request(planned), self.session.limits.case_s)
            if not answer.get("fresh"):
                return {**answer, "waited_s": time.monotonic() - start}
            slot.stop()
            replacement, found = slot.ready()
            if replacement is None:
                raise WorkerLost(found.status, found.reason)
            worker = replacement
        raise WorkerLost("failed", "a new worker of the system asked for another one")

    def _request(self, planned: Planned) -> dict[str, Any]:
        run = self.session.run
        policy = Policy.from_dict(run.file.policy)
        least = ceil(planned.min_samples / run.file.repeats)
        policy = replace(policy, min_samples=least, max_samples=max(least, policy.max_samples))
        return {"do": "case", "case": planned.case.to_dict(), "policy": policy.to_dict(), "mode": run.mode}

    def _unmeasured(self, planned: Planned, status: str, reason: str, found: Probe | None) -> Record:
        """A record made here because no worker made it."""
        environment = (
            found.environment if found and found.environment else snapshot(visible=self.place.env.get(GPU_VARIABLE))
        )
        paired = around(environment, environment)
        return Record(planned.case, status, reason, environment=paired, started_at=_now(), repeat=self.repeat)

    def _finish(self, planned: Planned, record: Record, before: Record | None) -> None:
        """A case skipped again for the reason of before keeps its record, so that resuming leaves the file as it is."""
        if before and record.status == before.status == "skipped" and record.reason == before.reason:
            record = before
        else:
            self.file.append(record)
        self.records.append(record)
        self.session.display.emit("record", planned, record, place=self.place.name)


class _Slot:
    """The place of one system's worker: filled when needed, emptied when the worker is not to be trusted."""

    def __init__(self, launch: Launch, limit_s: float, stopped: Callable[[], bool]) -> None:
        self.found: Probe | None = None
        self._launch, self._limit_s, self._stopped = launch, limit_s, stopped
        self._worker: WorkerProcess | None = None

    def ready(self) -> tuple[WorkerProcess | None, Probe]:
        """A worker that can run the system, or None; and what was found. A system once refused is not tried again."""
        if self._worker is not None and not self._worker.is_quiet():
            self.discard()  # it died or spoke out of turn after its last case
        if self._worker is None and (self.found is None or self.found.available):
            for _ in range(TRIES):
                self.found = self._start()
                if self.found.status != "unstarted":
                    break
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
            self._worker = WorkerProcess(self._launch, self._stopped)
            found = _probe_of(self._worker.ask({"do": "probe"}, self._limit_s))
            around(found.environment, found.environment)  # it must have the shape of one
        except WorkerLost as lost:
            self.discard()
            return Probe("unstarted", f"the system could not be started: {lost.reason}")
        except (AttributeError, TypeError, ValueError) as error:
            self.discard()
            return Probe("unstarted", f"the worker's answer to a probe is unusable: {of_exception(error)}")
        if not found.available:
            self.discard()
        return found


def _names(launches: Mapping[Pair, Launch]) -> str:
    return ", ".join(f"{system}/{backend}" for system, backend in sorted(launches)) or "none"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP (unless it is ignored, as under nohup) end a run as Ctrl-C does.

    Left alone outside of the main thread, which cannot set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        raise Terminated(signal.Signals(number).name)

    wanted = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, terminate) for number in wanted}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
