"""Ask systems in workers whether they can run here: packages, versions, the machine."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from harness.workers.process import Launch, Limits, WorkerProcess
from harness.workers.protocol import Probe

PROBE_CORES = 8  # from so many cores on, packages of one interpreter have processes of their own


def probe(launches: Sequence[Launch], limit_s: float = Limits.start_s) -> list[Probe]:
    """Probe systems, interpreters in parallel, and systems of one interpreter in one process.

    With enough cores, adapters of different packages run in parallel too: importing an engine takes seconds.
    """
    found: dict[int, Probe] = {}
    groups: dict[tuple, list[int]] = {}
    many = len(os.sched_getaffinity(0)) >= PROBE_CORES if hasattr(os, "sched_getaffinity") else False
    for number, launch in enumerate(launches):
        package = launch.entry.partition(":")[0].rpartition(".")[0] if many else ""
        key = (tuple(launch.command), launch.root, tuple(sorted(launch.env.items())), package)
        groups.setdefault(key, []).append(number)

    def probe_together(group: list[int]) -> None:
        with WorkerProcess(replace(launches[group[0]], entry=""), limit_s) as worker:
            for number in group:
                found[number] = worker.probe(launches[number].entry)

    with ThreadPoolExecutor(max(1, len(groups))) as threads:
        list(threads.map(probe_together, groups.values()))
    return [found[number] for number in range(len(launches))]
