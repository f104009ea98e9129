"""The line protocol between a run and its workers: one JSON object per line, answered by `harness.worker`.

    {"id": 1, "do": "probe"}            -> {"id": 1, "available": bool,
                                            "reason": str, "versions": {}, "environment": {}}
    {"id": 2, "do": "case", "case": {...}, "policy": {...}, "mode": "measure"}
                                        -> {"id": 2, "record": {...}, "healthy": bool}, or {"id": 2, "fresh": true}
    the same with "mode": "profile" and "profiler": {"tool": ...}
                                        -> {..., "profile": {...}}, fields of a `Profile`; {} without one
    {"id": 3, "do": "stop"}             -> the process ends, as it does at the end of its input

A probe may name another adapter as "entry". "healthy" is false where the process must not be trusted with another case;
with "fresh" it leaves this one to a new process.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from harness.measure.environment import around
from harness.schema.case import Mode
from harness.schema.policy import Policy
from harness.schema.reason import of_exception
from harness.schema.record import Record
from harness.schema.run_file import Planned


class WorkerLost(Exception):
    """A worker that gave no usable answer; `status` and `reason` are those of the record of its case."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


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


def line_of(message: Mapping[str, Any]) -> bytes:
    """The line of a request or an answer; ValueError for a number that JSON lacks."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def answer_in(buffer: bytearray, number: int) -> dict[str, Any] | None:
    """Take the answer with this id out of what a worker wrote, None while it is not whole.

    WorkerLost for an answer to another question, and for two.
    """
    while (end := buffer.find(b"\n")) >= 0:
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        if not line.lstrip().startswith(b"{"):
            continue  # what a container's client or an interpreter's start-up printed
        try:
            answer = json.loads(line)
            json.dumps(answer, ensure_ascii=False).encode()  # no lone surrogates
        except (ValueError, RecursionError):
            raise WorkerLost("failed", "the worker's answer is not JSON") from None
        if answer.get("id") != number:
            raise WorkerLost("failed", "the worker answered a question that it was not asked")
        if buffer.lstrip().startswith(b"{"):
            raise WorkerLost("failed", "the worker answered twice")
        return answer
    return None


def case_request(
    planned: Planned, policy: Policy, mode: Mode, profiler: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The request of a case as JSON values. profiler: fields of `in_worker.ProfilerChoice`."""
    request = {"do": "case", "case": planned.case.to_dict(), "policy": asdict(policy), "mode": mode}
    return request | ({"profiler": dict(profiler)} if profiler else {})


def record_of(answer: Mapping[str, Any], planned: Planned) -> Record:
    """The record in an answer; KeyError, TypeError or ValueError where it is none, or of another case."""
    record = Record.from_dict(answer["record"])
    if record.case != planned.case:
        raise ValueError(f"it is of another case: {record.case.label}")
    return record


def probe_of(answer: Mapping[str, Any]) -> Probe:
    """The probe in an answer; an unusable answer is a probe with the status "unstarted"."""
    try:
        available, reason = answer["available"] is True, str(answer["reason"])
        if not (available or reason):
            reason = "the system does not say why it cannot run"
        environment = dict(answer["environment"])
        around(environment, environment)  # it must have the shape of one
        return Probe("" if available else "skipped", reason, dict(answer["versions"]), environment)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return Probe("unstarted", f"the worker's answer to a probe is unusable: {of_exception(error)}")
