"""Run the jobs of a run: one loop for one device, several GPUs, and a task of Slurm; resumable."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any

from harness.measure.environment import around, commit_and_dirty, snapshot
from harness.measure.nvml import VARIABLE as GPU_VARIABLE
from harness.schema.claims import Holder
from harness.schema.reason import counted, of_exception
from harness.schema.record import Record, RecordError
from harness.schema.run import Run, latest
from harness.schema.run_file import Job, Pair, Planned
from harness.workers.machine_load import LoadMeter
from harness.workers.pool import Pool
from harness.workers.process import HERE, Launch, Limits, Place, PlaceLost, Stopped, WorkerProcess
from harness.workers.protocol import WorkerLost, case_request, record_of

TRIES = 2  # attempts at a case whose worker was killed or did not start, over all resumptions
LOST = ("killed", "unstarted")
Retry = Callable[[Record], bool]  # whether a resumption measures again a finished case with this record
SkipReason = Callable[[Planned, Sequence[Record]], str]


def nothing(record: Record) -> bool:
    """Retry no finished case."""
    return False


def not_ok(record: Record) -> bool:
    """Retry every case that is not ok."""
    return record.status != "ok"


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived: workers are ended and records kept as for Ctrl-C."""


@dataclass(frozen=True)
class Event:
    """What a display may show. kind: "plan" (first), "start" (of a case), "record" (its end),
    "lost" (a GPU is gone).

    done, total: cases of this run, without the `kept` ones that an earlier run finished. message: for "lost".
    place: where the case runs, "" where there is only one.
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
class Options:
    """Options of one call of `run_jobs`.

    jobs, repeats: all of the run's by default. retry: which finished cases to measure again. skip: a reason skips the
    case; it gets the case and its job's records so far. on_event: gets each `Event`.
    """

    jobs: Sequence[Job] | None = None
    repeats: Sequence[int] | None = None
    limits: Limits = field(default_factory=Limits)
    retry: Retry = nothing
    skip: SkipReason = lambda planned, earlier: ""
    on_event: Callable[[Event], object] = lambda event: None


def run_jobs(
    run: Run,
    launches: Mapping[Pair, Launch],
    options: Options = Options(),
    places: Sequence[Place] = (HERE,),
    task: Holder | None = None,
) -> list[Record]:
    """Run all unfinished cases; append each record to its job's file; return the last record per case and repeat.

    A case that crashes, is killed, exceeds its limit, exhausts memory or fails a check is a record too. A resumption
    tries skipped cases again. It tries lost ones (`LOST`) up to `TRIES` times, and others as `options.retry` says.
    One place: every case runs once before any runs a second time. Several: each job runs at the first free place.
    task: a task that claimed the jobs and shares the run; without it the run is held alone.
    Raises RecordError for an unusable file, RunError where no GPU is left, ValueError for a job without a launch.
    KeyboardInterrupt (SIGTERM: `Terminated`) passes through once the workers are killed.
    """
    jobs = run.jobs if options.jobs is None else options.jobs
    repeats = tuple(range(run.file.repeats) if options.repeats is None else options.repeats)
    for job in jobs:
        if job.pair not in launches:
            raise ValueError(f"system {'/'.join(job.pair)}: unknown; there are {_names(launches)}")
    with signals_raise(), run.held(task):
        todo = {job.name: Todo.of(run, job, repeats, options.retry) for job in jobs}
        total = sum(len(each.pending) for each in todo.values())
        display = _Display(options.on_event, total, kept=sum(each.kept for each in todo.values()))
        display.emit("plan")
        pool = Pool(run.folder, places, lambda text: display.emit("lost", message=text))

        def run_one(work: tuple[Job, Sequence[int]], place: Place) -> None:
            job, its_repeats = work
            for repeat in its_repeats:
                pending = todo[job.name].pending
                if any(at == repeat for _, at in pending):
                    _JobRun(run, job, launches[job.pair], options, repeat, place, display, pool.stop).cases(pending)

        alone = len(places) == 1
        pool.each(
            [(job, at) for at in ([(each,) for each in repeats] if alone else [repeats]) for job in jobs], run_one
        )
        for job in jobs:
            _refuse_loss(run, job, repeats)
        return run.records()


def _refuse_loss(run: Run, job: Job, repeats: Sequence[int]) -> None:
    """RecordError where a finished job lacks a record, as another program removed it."""
    there = sum(record.repeat in repeats for record in latest(job, run.job_records(job)))
    if lost := len(job.cases) * len(repeats) - there:
        raise RecordError(
            f"{run.record_file(job).path}: lost {counted(lost, 'record')} while the run was writing to it"
        )


@dataclass(frozen=True)
class Todo:
    """What is left of a job: (case, repeat) pairs in order, each until it has its record; how many are kept."""

    pending: list[tuple[Planned, int]]
    kept: int

    @classmethod
    def of(cls, run: Run, job: Job, repeats: Sequence[int], retry: Retry) -> "Todo":
        """What is left of a job of a run; retry: as in `Options`."""
        records = run.job_records(job)
        last = {(record.case.key, record.repeat): record for record in records}
        tries = Counter((record.case.key, record.repeat) for record in records if record.status in LOST)

        def is_finished(planned: Planned, repeat: int) -> bool:
            record = last.get((planned.case.key, repeat))
            if record is None or record.status == "skipped":
                return False
            if retry(record):
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
    """The cases of one job in one repeat, in one worker after another."""

    run: Run
    job: Job
    launch: Launch
    options: Options
    repeat: int
    place: Place
    display: _Display
    stop: threading.Event

    def cases(self, pending: list[tuple[Planned, int]]) -> None:
        """Run this repeat's pending cases in order and remove each.

        PlaceLost where the place's GPU is gone, Stopped once `stop` is set.
        """
        run = self.run
        whole = next(each for each in run.jobs if each.pair == self.job.pair)  # other calls' cases tell of memory too
        records = [each for each in latest(whole, run.job_records(whole)) if each.repeat == self.repeat]
        before = {record.case.key: record for record in records}
        launch = replace(self.launch, env={**self.launch.env, **self.place.env})
        with WorkerProcess(launch, self.options.limits.start_s, self.stop.is_set) as worker:
            for planned in [planned for planned, at in pending if at == self.repeat]:
                if self.stop.is_set():
                    raise Stopped
                self.display.emit("start", planned, place=self.place.name)
                if reason := self.options.skip(planned, records):
                    record = self._unmeasured(worker, planned, "skipped", reason)
                else:
                    record = self._record(worker, planned)
                if record.status not in ("ok", "incorrect") and not self.place.is_there():
                    raise PlaceLost
                record = self._kept(record, before.get(planned.case.key))
                records = [each for each in records if each.case.key != planned.case.key] + [record]
                self.display.emit("record", planned, record, place=self.place.name)
                pending.remove((planned, self.repeat))

    def _kept(self, record: Record, before: Record | None) -> Record:
        """Append a record; a case skipped for the same reason as before keeps its old one, and the file stays."""
        if before and record.status == before.status == "skipped" and record.reason == before.reason:
            return before
        self.run.record_file(self.job).append(record)
        return record

    def _record(self, worker: WorkerProcess, planned: Planned) -> Record:
        """The record of a case, or of how its worker was lost."""
        found = worker.ready()
        if not found.available:
            return self._unmeasured(worker, planned, found.status, found.reason)
        started_at, start = _now(), time.monotonic()
        try:
            return self._measured(worker, planned)
        except WorkerLost as lost:
            record = self._unmeasured(worker, planned, lost.status, lost.reason)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            worker.kill()
            reason = f"the worker's answer is unusable: {of_exception(error)}"
            record = self._unmeasured(worker, planned, "failed", reason)
        return replace(record, started_at=started_at, wall_s=time.monotonic() - start)

    def _measured(self, worker: WorkerProcess, planned: Planned) -> Record:
        load = LoadMeter()
        record = self._checked(planned, worker.ask(self._request(planned), self.options.limits.case_s))
        environment = record.environment
        cpu = {**(environment.get("cpu") or {}), **load.reading()}
        return replace(record, repeat=self.repeat, environment={**environment, "cpu": cpu})

    def _checked(self, planned: Planned, answer: Mapping[str, Any]) -> Record:
        """The record in an answer; ValueError where it is not one of this case, or claims more time than has passed."""
        record = record_of(answer, planned)
        self.place.refuse_another_gpu(record.environment)
        asked = self.run.file.requests[-1].machine if self.run.file.requests else {}
        of_gpu = bool(self.place.device_id) or asked.get("device_kind") == "cuda"
        if record.status == "ok" and of_gpu and record.environment.get("device_kind") != "cuda":
            raise ValueError("it was measured on the CPU: the worker's packages see no GPU, and the run is of one")
        claimed_s = sum(record.samples_ms) * record.calls / 1e3
        if claimed_s > answer["waited_s"] * 1.01 + 0.1:
            raise ValueError(
                f"its samples add up to {claimed_s:.3g} s, more than the {answer['waited_s']:.3g} s it took"
            )
        why = self.run.foreign(replace(record, repeat=self.repeat), self.job)
        if why:
            raise ValueError(why)
        return record

    def _request(self, planned: Planned) -> dict[str, Any]:
        run = self.run
        least = max(run.file.policy.min_samples, ceil(planned.min_samples / run.file.repeats))
        return case_request(planned, replace(run.file.policy, min_samples=least), run.mode)

    def _unmeasured(self, worker: WorkerProcess, planned: Planned, status: str, reason: str) -> Record:
        """A record made here because no worker made it."""
        found = worker.found
        environment = found.environment if found and found.environment else self._seen_from_here()
        paired = around(environment, environment)
        return Record(planned.case, status, reason, environment=paired, started_at=_now(), repeat=self.repeat)

    def _seen_from_here(self) -> dict[str, Any]:
        """What is known of a worker that never answered: its machine and its code, and not its packages."""
        machine = snapshot(visible=self.place.env.get(GPU_VARIABLE))
        commit, dirty = commit_and_dirty(self.launch.root)
        return machine | {"software": {}, "commit": commit, "dirty": dirty}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _names(launches: Mapping[Pair, Launch]) -> str:
    return ", ".join(f"{system}/{backend}" for system, backend in sorted(launches)) or "none"


@contextmanager
def signals_raise() -> Iterator[None]:
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
