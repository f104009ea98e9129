"""Run one case in a worker; always returns a record, even if the worker dies."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any

from harness.environment import around, snapshot
from harness.machine_load import LoadMeter
from harness.nvml import VARIABLE as GPU_VARIABLE
from harness.probe import Probe, probe_of
from harness.process import Launch, Place, WorkerLost, WorkerProcess
from harness.reason import of_exception
from harness.record import Record
from harness.run import Job, Planned, Run
from harness.timer import Policy

TRIES = 2  # of a case whose worker was killed or could not be started, over all resumptions
LOST = ("killed", "unstarted")


@dataclass(frozen=True)
class Attempts:
    """Cases of one job in one repeat, in the worker of a slot. case_s: how long each may take."""

    run: Run
    job: Job
    repeat: int
    place: Place
    slot: "WorkerSlot"
    case_s: float

    def record(self, planned: Planned) -> tuple[Record, bool]:
        """The record of a case, and whether the worker can take another."""
        worker, found = self.slot.ready()
        if worker is None:
            return self.unmeasured(planned, found.status, found.reason, found), True
        return self._measured(worker, planned, found)

    def _measured(self, worker: WorkerProcess, planned: Planned, found: Probe) -> tuple[Record, bool]:
        """What the worker makes of a case, or the record of how it was lost."""
        started_at, start, load = _now(), time.monotonic(), LoadMeter()
        try:
            answer = self._asked(worker, planned)
            record = self._checked(planned, answer)
            environment = record.environment
            cpu = {**(environment.get("cpu") or {}), **load.reading()}
            record = replace(record, repeat=self.repeat, environment={**environment, "cpu": cpu})
            return record, bool(answer.get("healthy"))
        except WorkerLost as lost:
            record = self.unmeasured(planned, lost.status, lost.reason, found)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"the worker's answer is unusable: {of_exception(error)}"
            record = self.unmeasured(planned, "failed", reason, found)
        return replace(record, started_at=started_at, wall_s=time.monotonic() - start), False

    def _checked(self, planned: Planned, answer: Mapping[str, Any]) -> Record:
        """The record in an answer; ValueError where it is not one of this case, or claims more time than has passed."""
        record = Record.from_dict(answer["record"])
        if record.case != planned.case:
            raise ValueError(f"it is of another case: {record.case.label}")
        device_id = (record.environment.get("gpu") or {}).get("device_id")
        if self.place.device_id and device_id and device_id != self.place.device_id:
            raise ValueError(f"it was measured on the GPU {device_id}, not on {self.place.device_id}")
        asked = self.run.file.requests[-1].machine if self.run.file.requests else {}
        if record.status == "ok" and asked.get("device_kind") == "cuda" != record.environment.get("device_kind"):
            raise ValueError("it was measured on the CPU: the worker's packages see no GPU, and the run is of one")
        claimed_s = sum(record.samples_ms) * record.calls / 1e3
        if claimed_s > answer["waited_s"] * 1.01 + 0.1 and planned.case.timing != "engine":
            raise ValueError(
                f"its samples add up to {claimed_s:.3g} s, more than the {answer['waited_s']:.3g} s it took"
            )
        why = self.run.foreign(replace(record, repeat=self.repeat), self.job)
        if why:
            raise ValueError(why)
        return record

    def _asked(self, worker: WorkerProcess, planned: Planned) -> dict[str, Any]:
        """The worker's answer, or that of a new one where it asks for one; WorkerLost as the worker's."""
        for _ in range(2):
            start = time.monotonic()
            answer = worker.ask(self._request(planned), self.case_s)
            if not answer.get("fresh"):
                return {**answer, "waited_s": time.monotonic() - start}
            self.slot.stop()
            replacement, found = self.slot.ready()
            if replacement is None:
                raise WorkerLost(found.status, found.reason)
            worker = replacement
        raise WorkerLost("failed", "a new worker of the system asked for another one")

    def _request(self, planned: Planned) -> dict[str, Any]:
        run = self.run
        policy = Policy.from_dict(run.file.policy)
        least = ceil(planned.min_samples / run.file.repeats)
        policy = replace(policy, min_samples=least, max_samples=max(least, policy.max_samples))
        return {"do": "case", "case": planned.case.to_dict(), "policy": policy.to_dict(), "mode": run.mode}

    def unmeasured(self, planned: Planned, status: str, reason: str, found: Probe | None) -> Record:
        """A record made here because no worker made it."""
        environment = (
            found.environment if found and found.environment else snapshot(visible=self.place.env.get(GPU_VARIABLE))
        )
        paired = around(environment, environment)
        return Record(planned.case, status, reason, environment=paired, started_at=_now(), repeat=self.repeat)


class WorkerSlot:
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

    def __enter__(self) -> "WorkerSlot":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.stop()
        self.discard()

    def _start(self) -> Probe:
        try:
            self._worker = WorkerProcess(self._launch, self._stopped)
            found = probe_of(self._worker.ask({"do": "probe"}, self._limit_s))
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
