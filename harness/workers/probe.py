"""Ask systems in workers whether they can run here, and what they find: packages, versions, the machine."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from harness.workers.process import Launch, Limits, WorkerProcess
from harness.workers.protocol import Probe

PROBE_CORES = 8  # from which probes of one interpreter are spread over several processes


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
    with WorkerProcess(replace(launches[group[0]], entry=""), limit_s) as worker:
        for number in group:
            found[number] = worker.probe(launches[number].entry)
