"""Share of CPU time used by other processes during a measurement."""

import os
import resource
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from harness.workers.warden import descendants

_STAT = "/proc/stat"
BUSY_SHARE, IDLE_SHARE = 0.1, 0.1
_ended: dict[int, float] = defaultdict(float)  # seconds of the children that each thread said it ends


class LoadMeter:
    """Processor time since it was made: of this process and its children, of others, and idle."""

    def __init__(self) -> None:
        self._start = _times()

    def reading(self) -> dict[str, Any]:
        """others_share and idle_share of the cores this process may use, in [0, 1]; empty where it is not known."""
        now = _times()
        if now is None or self._start is None:
            return {}
        busy, idle, own = (after - before for after, before in zip(now, self._start, strict=True))
        whole = busy + idle
        if whole <= 0:
            return {}
        return {
            "others_share": round(min(1.0, max(0.0, (busy - own) / whole)), 4),
            "idle_share": round(min(1.0, max(0.0, idle / whole)), 4),
        }


def is_loaded(environment: dict[str, Any]) -> bool:
    """Whether others used a case's cores while none was to spare: more than a tenth of them, less than a tenth idle."""
    cpu = environment.get("cpu") or {}
    others, idle = cpu.get("others_share"), cpu.get("idle_share")
    if not isinstance(others, int | float) or not isinstance(idle, int | float):
        return False
    return others > BUSY_SHARE and idle < IDLE_SHARE


def load_note(environment: dict[str, Any]) -> str:
    """What a reader must know of a case on a loaded machine."""
    share = (environment.get("cpu") or {}).get("others_share") or 0.0
    return f"others used {share:.0%} of the processors"


def _times() -> tuple[float, float, float] | None:
    """(busy, idle) seconds of the cores that this process may use, and the seconds of its own and its children's."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    tick = os.sysconf("SC_CLK_TCK")
    busy = idle = 0.0
    try:
        with open(_STAT) as file:
            for line in file:
                name, *numbers = line.split()
                if name in cores:
                    values = [int(number) / tick for number in numbers[:8]]
                    idle += values[3] + values[4]
                    busy += sum(values) - values[3] - values[4]
    except (OSError, ValueError, IndexError):
        return None
    return busy, idle, _own_seconds()


def seconds_until_now(pid: int) -> float:
    """Processor time of a child and of what it started, while they are there."""
    return _seconds_of([pid, *descendants(pid)])


def count_ended(seconds: float) -> None:
    """What a child used that this thread has ended and waited for is this thread's, and no other's."""
    _ended[threading.get_ident()] += seconds


def _own_seconds() -> float:
    """Of this process, of its children that were waited for, and of its descendants that run on this thread's cores.

    Those on other cores are workers of other GPUs, and what other threads have ended was.
    """
    own, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    elsewhere = sum(seconds for thread, seconds in [*_ended.items()] if thread != threading.get_ident())
    cores = os.sched_getaffinity(0)
    here = [pid for pid in descendants(os.getpid()) if not cores.isdisjoint(_cores_of(pid))]
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime - elsewhere + _seconds_of(here)


def _cores_of(pid: int) -> set[int]:
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()


def _seconds_of(pids: Iterable[int]) -> float:
    """Processor time of processes and of their children that ended."""
    tick, total = os.sysconf("SC_CLK_TCK"), 0.0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            total += sum(int(fields[at]) for at in (11, 12, 13, 14)) / tick  # utime, stime, and its own children's
        except (OSError, IndexError, ValueError):
            continue
    return total


def warning(effect: str, seconds: float = 0.3) -> str:
    """One sentence where others use the machine now, with what that means; "" where it is quiet."""
    meter = LoadMeter()
    time.sleep(seconds)
    share = meter.reading().get("others_share", 0.0)
    if share <= BUSY_SHARE:
        return ""
    return f"other programs use {share:.0%} of this machine's processors; {effect}"
