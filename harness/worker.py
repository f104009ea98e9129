"""A worker process: `python -m harness.worker MODULE:ATTRIBUTE[:ARGUMENT...]`.

ATTRIBUTE is a system's adapter (`harness.measure.system.SystemAdapter`) or its class, which gets the arguments.
Reads requests of `harness.workers.protocol` from stdin, writes answers to stdout; libraries' output goes to stderr.
"""

import importlib
import json
import os
import sys
from typing import Any, BinaryIO, TextIO

from harness.measure.environment import snapshot, versions_of
from harness.measure.measured_case import CaseRun
from harness.measure.system import NeedsFreshProcess, SystemAdapter
from harness.profiling.in_worker import profile
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.reason import sentence
from harness.workers.protocol import encode


def load(entry: str) -> Any:
    """Return the adapter that `entry` names; ValueError unless it has this module's form of an adapter."""
    names = entry.split(":")
    if len(names) < 2 or not all(names):
        raise ValueError(f"entry {entry!r}: must be MODULE:ATTRIBUTE")
    module, attribute, *arguments = names
    found = getattr(importlib.import_module(module), attribute)
    return found(*arguments) if isinstance(found, type) else found


def answer(system: SystemAdapter | None, request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a "probe" or "case" request of `harness.workers.protocol`.

    system: the worker's adapter; a request's "entry" takes precedence. None if every request has an "entry".
    """
    system = load(request["entry"]) if "entry" in request else system
    assert system is not None, "no system was named"
    if request["do"] == "probe":
        reason = sentence(system.unavailable())  # first: it may import torch, whose threads `snapshot` counts
        environment, versions = snapshot(), versions_of(system.packages)
        environment["software"] = environment["software"] | versions
        return {"reason": reason, "versions": versions, "environment": environment}
    case, policy, mode = Case(**request["case"]), Policy(**request["policy"]), request["mode"]
    profiler = (lambda *work: profile(*work, **request["profiler"])) if mode == "profile" else None
    run = CaseRun(case, policy, mode, profiler)
    try:
        record = run.record(system)
    except NeedsFreshProcess:
        return {"fresh": True}
    return {"record": json.loads(record.to_json()), "healthy": run.healthy, "profile": run.profile}


def main(arguments: list[str]) -> None:
    """Answer requests from stdin until EOF. Without `arguments`, each request names its adapter."""
    this_process = os.getpid()
    requests, answers = _claim_pipes()
    system = load(arguments[0]) if arguments else None  # without one, requests name it
    for line in requests:
        data = encode(answer(system, json.loads(line)))
        if os.getpid() != this_process:
            os._exit(1)  # a child that the case forked; its parent answers
        answers.write(data)
        answers.flush()


def _claim_pipes() -> tuple[TextIO, BinaryIO]:
    """Return copies of stdin and stdout; libraries get an empty stdin and print to stderr."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return requests, answers


if __name__ == "__main__":
    main(sys.argv[1:])
