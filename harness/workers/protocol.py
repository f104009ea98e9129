"""Protocol between a run and its workers: requests and answers, a JSON line each.

`harness.worker` answers these requests:

    {"do": "probe"}   -> {"reason": "" if the system can run, "versions": {}, "environment": {}}
    {"do": "case", "case": {...}, "policy": {...}, "mode": "measure"}
                      -> {"record": {...}, "healthy": bool, "profile": {}}, or {"fresh": true}
    the same with "mode": "profile" and "profiler": {"tool": ...}
                      -> "profile" has fields of a `Profile`

A worker exits at EOF on stdin. A request can name another adapter as "entry". "healthy" is false if the process
must not run another case. "fresh" is true if the case needs a new process, and has not run.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any


class WorkerLost(Exception):
    """Raised if a worker gives no usable result; `status` is the status for the case's record."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Probe:
    """Answer of a worker on whether its system can run on this machine.

    reason: why the system cannot run; "" if it can.
    versions: {package: version} of the adapter's packages.
    environment: the worker's `harness.measure.environment.snapshot()`.
    status: for records if the system cannot run: "skipped", or "unstarted" if the worker gave no usable answer.
    """

    reason: str
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    status: str = "skipped"

    @property
    def available(self) -> bool:
        return not self.reason


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a JSON line of a message (dataclasses allowed); ValueError for NaN or infinity."""
    return json.dumps(message, allow_nan=False, default=asdict).encode() + b"\n"


def pop_answer(buffer: bytearray) -> dict[str, Any] | None:
    """Remove the first complete answer from `buffer` and return it; None if there is no answer.

    Skip other lines, such as messages of a container client or an interpreter.
    """
    while (end := buffer.find(b"\n")) >= 0:
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        with suppress(ValueError):
            found = re.search(rb'\{"(reason|record|fresh)":.*', line)  # a message before it may have no newline
            answer = json.loads(found[0] if found else line)
            if isinstance(answer, dict):
                return answer
    return None
