"""Run one system in its own process: `python -m harness.worker MODULE:ATTRIBUTE` answers requests, one a line.

`harness.workers.protocol` says which. ATTRIBUTE is an adapter (`harness.SystemAdapter`) or a class of it. Answers go to
the original stdout; what libraries print goes to stderr.
"""

import importlib
import json
import os
import select
import sys
import threading
from typing import Any, BinaryIO, TextIO

from harness.measure.environment import snapshot, versions_of
from harness.measure.measured_case import CaseRun
from harness.measure.nvml import Cooler
from harness.measure.system import NeedsFreshProcess, Skip, SystemAdapter, Workload
from harness.profiling.in_worker import ProfilerChoice
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.reason import sentence
from harness.workers.protocol import line_of


def load(entry: str) -> SystemAdapter:
    """The adapter that MODULE:ATTRIBUTE names; a class is instantiated."""
    module, _, attribute = entry.partition(":")
    if not module or not attribute:
        raise ValueError(f"entry {entry!r}: must be MODULE:ATTRIBUTE")
    found = getattr(importlib.import_module(module), attribute)
    return found() if isinstance(found, type) else found


def answer(system: SystemAdapter, request: dict[str, Any], cooler: Cooler) -> dict[str, Any]:
    """The answer to a "probe" or a "case"; ValueError for another request."""
    if request["do"] == "probe":
        return _probe(load(request["entry"]) if "entry" in request else system)
    if request["do"] == "case":
        return _case(system, request, cooler)
    raise ValueError(f"request {request['do']!r}: must be probe, case or stop")


def _probe(system: SystemAdapter) -> dict[str, Any]:
    reason = system.unavailable()
    if not isinstance(reason, str):
        raise TypeError(f'{type(system).__name__}.unavailable returned {reason!r:.60}; it must be a sentence, or ""')
    reason = sentence(reason)
    environment, versions = snapshot(), versions_of(system.packages)
    environment["software"] = environment["software"] | versions
    return {"available": not reason, "reason": reason, "versions": versions, "environment": environment}


def _case(system: SystemAdapter, request: dict[str, Any], cooler: Cooler) -> dict[str, Any]:
    case, policy = Case.from_dict(request["case"]), Policy(**request["policy"])
    profiler = ProfilerChoice(**request.get("profiler", {})) if request["mode"] == "profile" else None
    run = CaseRun(case, policy, request["mode"], profiler, cooler)
    try:
        record = run.record(system)
    except NeedsFreshProcess:
        return {"fresh": True}
    profile = {"profile": run.profile} if run.mode == "profile" else {}
    return {"record": record.to_dict(), "healthy": run.healthy, **profile}


def main(arguments: list[str]) -> int:
    """Answer requests until told to stop."""
    if len(arguments) > 1:
        print("usage: python -m harness.worker [MODULE:ATTRIBUTE]", file=sys.stderr)
        return 2
    asked = os.getpid()
    requests, answers = _claim_pipes()
    _die_with_parent(answers.fileno())
    system, cooler = load(arguments[0]) if arguments else _NoSystem(), Cooler()
    for line in requests:
        request = json.loads(line)
        if request["do"] == "stop":
            break
        data = line_of({"id": request["id"], **answer(system, request, cooler)})
        if os.getpid() != asked:
            os._exit(1)  # a child that a case forked and that came back here; its parent answers
        answers.write(data)
        answers.flush()
    return 0


class _NoSystem:
    """Of a worker that is only asked whether others can run."""

    packages: tuple[str, ...] = ()

    def unavailable(self) -> str:
        return "no system was named"

    def build(self, case: Case) -> Workload:
        raise Skip("no system was named")


def _claim_pipes() -> tuple[TextIO, BinaryIO]:
    """The pipes of the protocol, out of reach of libraries: their stdin is empty and their stdout is stderr."""
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return requests, answers


def _die_with_parent(answers: int) -> None:
    """Free the GPU when the parent dies, even by SIGKILL and in the middle of a case.

    The warden does so on Linux; elsewhere, and in a container, the broken pipe of answers tells.
    """
    threading.Thread(target=_exit_when_broken, args=(answers,), daemon=True).start()


def _exit_when_broken(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # only errors: the reader closed its end
    poll.poll()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
