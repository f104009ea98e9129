"""What a worker is asked of a case, and what of its answer may be believed."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from harness.schema.case import Mode
from harness.schema.policy import Policy
from harness.schema.record import Record
from harness.schema.run_file import Planned
from harness.workers.process import Place


def case_request(
    planned: Planned, policy: Policy, mode: Mode, profiler: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The request of a case as JSON values. profiler: fields of `profiled_case.ProfilerChoice`."""
    request = {"do": "case", "case": planned.case.to_dict(), "policy": asdict(policy), "mode": mode}
    return request | ({"profiler": dict(profiler)} if profiler else {})


def record_of(answer: Mapping[str, Any], planned: Planned, place: Place) -> Record:
    """The record in an answer; KeyError, TypeError or ValueError where it is none, or of another case or GPU."""
    record = Record.from_dict(answer["record"])
    if record.case != planned.case:
        raise ValueError(f"it is of another case: {record.case.label}")
    if other := place.another_gpu(record.environment):
        raise ValueError(f"it ran on {other}")
    return record
