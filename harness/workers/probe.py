"""Find out in workers which systems can run here, with their package versions and the machine."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from harness.workers.process import Launch, Limits, WorkerProcess
from harness.workers.protocol import Probe

PROBE_CORES = 8  # with so many cores or more, each package of adapters has its own process


def probe(launches: Sequence[Launch], limit_s: float = Limits.start_s) -> list[Probe]:
    """Return the probe of each launch. Interpreters run in parallel; the systems of one interpreter share a process.

    With `PROBE_CORES` cores, adapters of different packages run in parallel too: importing an engine takes seconds.
    limit_s: seconds for each probe.
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
