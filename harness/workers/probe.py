"""Ask systems in workers whether they can run here, and what they find: packages, versions, the machine."""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness.workers.process import Launch, Limits, WorkerLost, WorkerProcess

PROBE_CORES = 8  # from which probes of one interpreter are spread over several processes


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


def probe(launches: Sequence[Launch], limit_s: float = Limits.start_s) -> list[Probe]:
    """Ask systems whether they can run, interpreters side by side and those of one interpreter in one process.

    Where there are cores for it, adapters of other packages have other processes: importing an engine takes most of it.
    """
    found: dict[int, Probe] = {}
    groups: dict[tuple, list[int]] = {}
    many = len(os.sched_getaffinity(0)) >= PROBE_CORES if hasattr(os, "sched_getaffinity") else False
    for number, launch in enumerate(launches):
        package = launch.entry.partition(":")[0].rpartition(".")[0] if many else ""
        key = (tuple(launch.command), launch.root, tuple(sorted(launch.env.items())), package)
        groups.setdefault(key, []).append(number)
    threads = [
        threading.Thread(target=_probe_together, args=(launches, group, found, limit_s)) for group in groups.values()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(len(launches))]


def _probe_together(launches: Sequence[Launch], group: list[int], found: dict[int, Probe], limit_s: float) -> None:
    worker: WorkerProcess | None = None
    for number in group:
        try:
            worker = worker or WorkerProcess(replace(launches[number], entry=""))
            found[number] = probe_of(worker.ask({"do": "probe", "entry": launches[number].entry}, limit_s))
        except WorkerLost as lost:
            found[number] = Probe("unstarted", f"the system could not be started: {lost.reason}")
            if worker is not None:
                worker.kill()
            worker = None
    if worker is not None:
        worker.stop()


def probe_of(answer: Mapping[str, Any]) -> Probe:
    """The probe in a worker's answer; WorkerLost where it is none."""
    try:
        available, reason = answer["available"] is True, str(answer["reason"])
        if not (available or reason):
            reason = "the system does not say why it cannot run"
        return Probe("" if available else "skipped", reason, dict(answer["versions"]), dict(answer["environment"]))
    except (KeyError, TypeError, ValueError):
        raise WorkerLost("failed", "the worker's answer to a probe is unusable") from None
