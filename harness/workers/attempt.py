"""Run one case in a worker; always returns a record, even if the worker dies."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any

from harness.measure.environment import around, commit_and_dirty, snapshot
from harness.measure.nvml import VARIABLE as GPU_VARIABLE
from harness.schema.reason import of_exception
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Job, Planned
from harness.workers.answers import case_request, record_of
from harness.workers.machine_load import LoadMeter
from harness.workers.probe import Probe
from harness.workers.process import Place, WorkerLost
from harness.workers.worker_slot import WorkerSlot

TRIES = 2  # of a case whose worker was killed or could not be started, over all resumptions
LOST = ("killed", "unstarted")
Retry = Callable[[Record], bool]  # whether a resumption tries again a case that is finished and has this record


def nothing(record: Record) -> bool:
    """The `Retry` that tries nothing again."""
    return False


def not_ok(record: Record) -> bool:
    """The `Retry` of whatever is not ok."""
    return record.status != "ok"


@dataclass(frozen=True)
class Attempts:
    """Cases of one job in one repeat, in the worker of a slot. case_s: how long each may take."""

    run: Run
    job: Job
    repeat: int
    place: Place
    slot: WorkerSlot
    case_s: float

    def record(self, planned: Planned) -> Record:
        """The record of a case, or of how its worker was lost."""
        found = self.slot.ready()
        if not found.available:
            return self.unmeasured(planned, found.status, found.reason, found)
        started_at, start = _now(), time.monotonic()
        try:
            return self._measured(planned)
        except WorkerLost as lost:
            record = self.unmeasured(planned, lost.status, lost.reason, found)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.slot.discard()
            reason = f"the worker's answer is unusable: {of_exception(error)}"
            record = self.unmeasured(planned, "failed", reason, found)
        return replace(record, started_at=started_at, wall_s=time.monotonic() - start)

    def _measured(self, planned: Planned) -> Record:
        load = LoadMeter()
        record = self._checked(planned, self.slot.ask(self._request(planned), self.case_s))
        environment = record.environment
        cpu = {**(environment.get("cpu") or {}), **load.reading()}
        return replace(record, repeat=self.repeat, environment={**environment, "cpu": cpu})

    def _checked(self, planned: Planned, answer: Mapping[str, Any]) -> Record:
        """The record in an answer; ValueError where it is not one of this case, or claims more time than has passed."""
        record = record_of(answer, planned, self.place)
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
        policy = run.file.policy
        least = max(policy.min_samples, ceil(planned.min_samples / run.file.repeats))
        policy = replace(policy, min_samples=least, max_samples=max(least, policy.max_samples))
        return case_request(planned, policy, run.mode)

    def unmeasured(self, planned: Planned, status: str, reason: str, found: Probe | None) -> Record:
        """A record made here because no worker made it."""
        environment = found.environment if found and found.environment else self._seen_from_here()
        paired = around(environment, environment)
        return Record(planned.case, status, reason, environment=paired, started_at=_now(), repeat=self.repeat)

    def _seen_from_here(self) -> dict[str, Any]:
        """What is known of a worker that never answered: its machine and its code, and not its packages."""
        machine = snapshot(visible=self.place.env.get(GPU_VARIABLE))
        commit, dirty = commit_and_dirty(self.slot.launch.root)
        return machine | {"software": {}, "commit": commit, "dirty": dirty}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
