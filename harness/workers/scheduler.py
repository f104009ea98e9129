"""Run or resume a run's jobs: on one device, on a host's GPUs, or as a Slurm task."""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

from harness.measure.environment import against_lock, around, commit_and_dirty, snapshot
from harness.measure.nvml import VARIABLE as GPU_VARIABLE
from harness.measure.system import NeedsFreshProcess
from harness.schema.case import Case
from harness.schema.record import Record, utc_now
from harness.schema.run import Run, latest
from harness.schema.run_file import Job, Pair, Planned
from harness.workers.pool import on_free_slots
from harness.workers.process import DEFAULT_SLOT, GpuSlot, Launch, Limits, WorkerProcess
from harness.workers.protocol import Probe, WorkerLost

UNFINISHED = ("skipped", "killed", "unstarted")  # statuses of cases that a resumption always runs again
Retry = Callable[[Record], bool]  # whether to measure a finished case with this record again
SkipReason = Callable[[Planned, Sequence[Record]], str]


@dataclass(frozen=True)
class Event:
    """Progress of a run, reported to `Options.on_event`.

    kind: "plan" before the first case, "start" when a case starts (again if it had to wait), "record" at its end.
    planned: the case; None for "plan". record: the case's result; only for "record".
    slot: name of the case's GPU slot; "" for the default device.
    total, kept: for "plan", the number of cases to run and the number of cases that an earlier call finished.
    """

    kind: str
    planned: Planned | None = None
    record: Record | None = None
    slot: str = ""
    total: int = 0
    kept: int = 0


@dataclass(frozen=True)
class Options:
    """Options of one call of `run_jobs`.

    jobs: the jobs to run; None for all jobs of the run.
    repeat: the repeat to run; above 0 only in `ttt-bench ab`.
    retry: returns, for the record of a finished case, whether to measure the case again.
    skip: returns, for a case and its job's records so far, the reason to skip the case, or "".
    on_event: called with each `Event`.
    """

    jobs: Sequence[Job] | None = None
    repeat: int = 0
    limits: Limits = field(default_factory=Limits)
    retry: Retry = lambda record: False
    skip: SkipReason = lambda planned, earlier: ""
    on_event: Callable[[Event], object] = lambda event: None


def run_jobs(
    run: Run,
    launches: Mapping[Pair, Launch],
    options: Options = Options(),
    slots: Sequence[GpuSlot] = (DEFAULT_SLOT,),
    shared: bool = False,
) -> list[Record]:
    """Run unfinished cases and append records; return the last record per case and repeat.

    A worker's crash, kill or timeout, exhausted memory and a failed check also give a record.
    A case with a record runs again if it was skipped, killed or not started, or if `options.retry` returns True.
    A skip does not replace an "ok" record. A case that needs a new process runs after its worker's other cases.
    launches: how to start the worker of each (system, backend). slots: the devices that run jobs in parallel.
    shared: True for a Slurm task, which shares the run with other tasks. Otherwise, this process locks the run.
    Raises RecordError for an unusable file, and RunError for a lost GPU or a locked run.
    Raises KeyboardInterrupt, also for SIGTERM and SIGHUP, after the workers are killed.
    """
    jobs = run.jobs if options.jobs is None else options.jobs
    with signals_raise(), run.held(shared):
        todo = {job.name: unfinished(run, job, options.repeat, options.retry) for job in jobs}
        lock = threading.Lock()

        def emit(kind: str, **fields: Any) -> None:
            with lock:  # calls from several threads do not overlap
                options.on_event(Event(kind, **fields))

        total = sum(map(len, todo.values()))
        emit("plan", total=total, kept=sum(len(job.cases) for job in jobs) - total)

        def run_one(job: Job, slot: GpuSlot, stopped: Callable[[], bool]) -> None:
            if pending := todo[job.name]:
                _JobRun(run, job, launches[job.pair], options, slot, emit, stopped).cases(pending)

        on_free_slots(jobs, slots, run_one)
        return run.records()


def unfinished(run: Run, job: Job, repeat: int, retry: Retry) -> list[Planned]:
    """Return cases whose record in `repeat` is missing, `UNFINISHED`, or selected by `retry`."""
    last = {record.case.key: record for record in run.job_records(job) if record.repeat == repeat}
    finished = {key for key, record in last.items() if record.status not in UNFINISHED and not retry(record)}
    return [planned for planned in job.cases if planned.case.key not in finished]


@dataclass
class _JobRun:
    run: Run
    job: Job
    launch: Launch
    options: Options
    slot: GpuSlot
    emit: Callable[..., None]
    stopped: Callable[[], bool]

    def cases(self, pending: list[Planned]) -> None:
        run, name = self.run, self.slot.name
        whole = next(each for each in run.jobs if each.pair == self.job.pair)  # self.job may be a part of it
        records = [each for each in latest(whole, run.job_records(whole)) if each.repeat == self.options.repeat]
        before = {record.case.key: record for record in records}
        with WorkerProcess(self.launch, self.slot, self.options.limits.start_s, self.stopped) as worker:
            waiting, others = deque(pending), deque[Planned]()
            while waiting or others:
                if not waiting:
                    worker.stop()
                    waiting, others = others, waiting
                planned = waiting.popleft()
                self.emit("start", planned=planned, slot=name)
                if reason := self.options.skip(planned, records):
                    record = unmeasured(planned.case, "skipped", reason, self.launch, self.slot, worker.last_probe)
                else:
                    try:
                        record = self._record(worker, planned)
                    except NeedsFreshProcess:  # first the cases that this worker can run
                        others.append(planned)
                        continue
                record = replace(record, repeat=self.options.repeat)
                software = record.environment.get("software") or {}
                if differences := against_lock(software, self.launch.locked):
                    software |= {"versions": differences}
                if record.status not in ("ok", "incorrect"):
                    self.slot.refuse_lost_gpu()
                earlier = before.get(planned.case.key)
                same = earlier and (earlier.status, earlier.reason) == ("skipped", record.reason)
                if record.status != "skipped" or not (same or (earlier and earlier.status == "ok")):
                    run.record_file(self.job).append(record)
                    records = [each for each in records if each.case.key != planned.case.key] + [record]
                self.emit("record", planned=planned, record=record, slot=name)

    def _record(self, worker: WorkerProcess, planned: Planned) -> Record:
        started_at, start = utc_now(), time.monotonic()
        policy = self.run.file.policy
        least = max(policy.min_samples, ceil(planned.min_samples / self.run.file.repeats))
        policy = replace(policy, min_samples=least)
        requested = self.run.file.requests[-1].machine if self.run.file.requests else {}
        needs_gpu = bool(self.slot.device_id) or requested.get("device_kind") == "cuda"
        try:
            record, _ = worker.run_case(planned.case, policy, self.run.file.mode, self.options.limits.case_s)
            if record.status == "ok" and needs_gpu and record.environment.get("device_kind") != "cuda":
                why = "it was measured on the CPU: the worker's packages see no GPU, but this run is for a GPU"
                raise WorkerLost("failed", why)
            return record
        except WorkerLost as lost:
            record = unmeasured(planned.case, lost.status, str(lost), self.launch, self.slot, worker.last_probe)
        return replace(record, started_at=started_at, wall_s=time.monotonic() - start)


def unmeasured(
    case: Case, status: str, reason: str, launch: Launch, slot: GpuSlot, found: Probe | None = None
) -> Record:
    """Return a record without samples, with the worker's environment or, if unknown, this process's."""
    environment = found.environment if found else {}
    if not environment:  # the worker never answered, so versions of packages are unknown
        commit, dirty = commit_and_dirty(launch.root)
        machine = snapshot(visible=slot.env.get(GPU_VARIABLE))
        environment = machine | {"software": {}, "commit": commit, "dirty": dirty}
    return Record(case, status, reason, environment=around(environment, environment), started_at=utc_now())


@contextmanager
def signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt unless ignored; only in the main thread."""
    is_main = threading.current_thread() is threading.main_thread()
    wanted = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    earlier = {number: signal.signal(number, signal.default_int_handler) for number in wanted if is_main}
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
