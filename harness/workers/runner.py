"""Go through the jobs of a run: which cases are left, in which order, who is notified, and when it ends; resumable."""

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from harness.schema.claims import Holder
from harness.schema.reason import counted
from harness.schema.record import Record, RecordError
from harness.schema.record_file import RecordFile
from harness.schema.run import Run, latest
from harness.schema.run_file import Job, Pair, Planned, RunError
from harness.workers.attempt import LOST, TRIES, Attempts, Retry, nothing
from harness.workers.process import HERE, RUN_VARIABLE, Launch, Limits, Place, PlaceLost, Stopped, end_marked
from harness.workers.worker_slot import WorkerSlot

SkipReason = Callable[[Planned, Sequence[Record]], str]


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP arrived: workers are ended and records kept as for Ctrl-C."""


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


def run_jobs(
    run: Run,
    launches: Mapping[Pair, Launch],
    *,
    jobs: Sequence[Job] | None = None,
    repeats: Sequence[int] | None = None,
    limits: Limits | None = None,
    retry: Retry = nothing,
    on_event: Callable[[Event], object] = lambda event: None,
    skip: SkipReason = lambda planned, earlier: "",
    place: Place = HERE,
) -> list[Record]:
    """Run what is not finished of `jobs` and `repeats` (all of the run's); append each record to its job's file.

    A worker is kept while it is healthy. A case that crashes, is killed, exceeds its limit, exhausts memory or misses
    a check is a record too. What is finished is kept; skipped cases are tried again, as their system may be there now,
    and those whose worker was killed or could not be started, `TRIES` times; of the rest what `retry` says. skip: asked
    before each case, with its job's records so far; a reason skips it. place: where they run.
    With repeats, every case runs once in a fresh process of its job before any runs a second time.
    Returns the last record of each case and repeat. Raises RecordError for an unusable file, RunError where the place's
    GPU is gone, ValueError for a job without a launch. KeyboardInterrupt (SIGTERM raises its subclass Terminated)
    passes through once the worker has been killed; every finished case is in its file.
    """
    with session(
        run, launches, jobs=jobs, repeats=repeats, limits=limits, retry=retry, on_event=on_event, skip=skip
    ) as work:
        return run_at(work, place)


def run_at(work: "Session", place: Place) -> list[Record]:
    """All jobs of a session at one place, one after another; the last record of each case and repeat."""
    try:
        for repeat in work.repeats:
            for job in work.jobs:
                work.run_job(job, [repeat], place)
    except PlaceLost:
        raise gpu_gone(work.run) from None
    return work.finished()


def gpu_gone(run: Run) -> RunError:
    """What ends a run, or its profiling, on one GPU that no longer answers."""
    return RunError(f"{run.folder}: the GPU is gone; what is finished is kept, resume it (--resume)")


@contextmanager
def session(
    run: Run,
    launches: Mapping[Pair, Launch],
    *,
    jobs: Sequence[Job] | None = None,
    repeats: Sequence[int] | None = None,
    limits: Limits | None = None,
    retry: Retry = nothing,
    on_event: Callable[[Event], object] = lambda event: None,
    skip: SkipReason = lambda planned, earlier: "",
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
    with signals_raise(), run.held(task):
        todo = {job.name: Todo.of(run, job, repeats, retry) for job in jobs}
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
    skip: SkipReason
    todo: Mapping[str, "Todo"]
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
            raise RecordError(f"{path}: lost {counted(lost, 'record')} while the run was writing to it")


@dataclass(frozen=True)
class Todo:
    """What is left of a job: (case, repeat) pairs in order, each until it has its record; how many are kept."""

    pending: list[tuple[Planned, int]]
    kept: int

    @classmethod
    def of(cls, run: Run, job: Job, repeats: Sequence[int], retry: Retry) -> "Todo":
        """What is left of a job of a run; retry: as of `run_jobs`."""
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
        whole = next(each for each in run.jobs if each.pair == self.job.pair)  # other calls' cases tell of memory too
        self.records = [each for each in latest(whole, run.job_records(whole)) if each.repeat == self.repeat]
        before = {record.case.key: record for record in self.records}
        pending = session.todo[self.job.name].pending
        with WorkerSlot(self.launch, session.limits.start_s, session.stop.is_set) as slot:
            attempts = Attempts(run, self.job, self.repeat, self.place, slot, session.limits.case_s)
            for planned in [planned for planned, at in pending if at == self.repeat]:
                if session.stop.is_set():
                    raise Stopped
                session.display.emit("start", planned, place=self.place.name)
                if reason := session.skip(planned, self.records):
                    record = attempts.unmeasured(planned, "skipped", reason, slot.found)
                else:
                    record = attempts.record(planned)
                if record.status not in ("ok", "incorrect") and not self.place.is_there():
                    raise PlaceLost
                self._finish(planned, record, before.get(planned.case.key))
                pending.remove((planned, self.repeat))

    def _finish(self, planned: Planned, record: Record, before: Record | None) -> None:
        """A case skipped again for the reason of before keeps its record, so that resuming leaves the file as it is."""
        if before and record.status == before.status == "skipped" and record.reason == before.reason:
            record = before
        else:
            self.file.append(record)
        self.records = [each for each in self.records if each.case.key != planned.case.key] + [record]
        self.session.display.emit("record", planned, record, place=self.place.name)


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
