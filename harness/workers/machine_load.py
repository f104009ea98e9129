"""Measure the share of CPU time that other processes use during a measurement."""

import os
from pathlib import Path
from typing import Any

from harness.workers.supervisor import descendants

_STAT = "/proc/stat"
BUSY_SHARE, IDLE_SHARE = 0.1, 0.1

CpuSeconds = tuple[float, float, float]


def load_between(start: CpuSeconds, end: CpuSeconds) -> dict[str, Any]:
    """Return the machine's load between two moments, from the `cpu_seconds` at both.

    others_share: other processes' share of CPU time. idle_share: share of idle CPU time. {} if no clock tick passed.
    """
    busy, idle, own = (after - before for after, before in zip(end, start, strict=True))
    whole = busy + idle
    if whole <= 0:
        return {}
    return {
        "others_share": round(min(1.0, max(0.0, (busy - own) / whole)), 4),
        "idle_share": round(min(1.0, max(0.0, idle / whole)), 4),
    }


def is_loaded(environment: dict[str, Any]) -> bool:
    """Whether other processes used over 10% of CPU time during a case, and under 10% was idle."""
    cpu = environment.get("cpu") or {}
    return bool(cpu.get("others_share", 0.0) > BUSY_SHARE and cpu.get("idle_share", 1.0) < IDLE_SHARE)


def load_note(environment: dict[str, Any]) -> str:
    """Return "contended: other programs used 30% of the CPU"; call it only if `is_loaded`."""
    share = (environment.get("cpu") or {}).get("others_share") or 0.0
    return f"contended: other programs used {share:.0%} of the CPU"


def cpu_seconds(pid: int) -> CpuSeconds:
    """Return CPU seconds: of the allowed cores (busy, idle), and of `pid` and its descendants."""
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    tick = os.sysconf("SC_CLK_TCK")
    busy = idle = 0.0
    for line in Path(_STAT).read_text().splitlines():
        name, *numbers = line.split()
        if name in cores:
            values = [int(number) / tick for number in numbers[:8]]
            idle += values[3] + values[4]
            busy += sum(values) - values[3] - values[4]
    return busy, idle, sum(map(_seconds_of, [pid, *descendants(pid)]))


def _seconds_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return sum(int(fields[at]) for at in (11, 12, 13, 14)) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0
