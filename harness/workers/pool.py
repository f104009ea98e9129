"""Run jobs on several GPUs of one host: one at a time per GPU, on its share of CPU cores."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

from harness.measure.environment import DEVICE_ORDER
from harness.measure.nvml import VARIABLE, open_gpu
from harness.workers.process import DEFAULT_SLOT, GpuSlot

T = TypeVar("T")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def slots_of(gpus: Sequence[str], device: str) -> list[GpuSlot]:
    """Return a slot per GPU; without `gpus`, one slot for the default GPU or the CPU.

    gpus: names as in CUDA_VISIBLE_DEVICES. device: "cpu" or "cuda", which matters only without `gpus`.
    """
    if device == "cuda" and not gpus and _device_id():
        return [replace(DEFAULT_SLOT, is_there=lambda: bool(_device_id()))]

    def slot_of(gpu: str) -> GpuSlot:
        device_id = _device_id(gpu)
        return GpuSlot(f"GPU {gpu}", {VARIABLE: gpu, **DEVICE_ORDER}, device_id, lambda: _device_id(gpu) == device_id)

    return list(map(slot_of, gpus)) or [DEFAULT_SLOT]


def _device_id(gpu: str | None = None) -> str:
    found = open_gpu(gpu)
    return found.constants()["device_id"] if found else ""


def on_free_slots(
    jobs: Iterable[T], slots: Sequence[GpuSlot], do: Callable[[T, GpuSlot, Callable[[], bool]], object]
) -> None:
    """Run each job in the thread of the next free slot; start the jobs in order.

    do: called as `do(job, slot, stopped)`, where `stopped()` returns whether all jobs should end. If it returns True,
        `do` must raise KeyboardInterrupt, because Ctrl-C itself reaches only the main thread.
    After Ctrl-C or a job's exception, no job starts and running jobs end. Then the first exception is raised here.
    """
    stop, waiting = threading.Event(), iter(list(jobs))
    results, ended = SimpleQueue[BaseException | None](), list[threading.Thread]()

    def serve(slot: GpuSlot, cores: set[int]) -> None:
        error = None
        try:
            os.sched_setaffinity(0, cores)  # of this thread and its workers
            for job in waiting:
                if stop.is_set():
                    break
                do(job, slot, stop.is_set)
        except BaseException as raised:
            error = raised
        ended.append(threading.current_thread())
        results.put(error)

    # A thread lives as long as its workers: the kernel kills a worker with the thread that started it.
    arguments = zip(slots, shares(len(slots)), strict=True)
    # A daemon: after a second Ctrl-C, the program ends without a thread that does not stop.
    threads = [threading.Thread(target=serve, args=each, daemon=True) for each in arguments]
    try:
        for thread in threads:
            thread.start()
        left = len(threads)
        while left:
            with suppress(Empty):  # a wait without limit can miss a signal that comes just before it
                error = results.get(timeout=0.2)
                left -= 1
                if error:
                    raise error
    finally:
        stop.set()
        while any(thread.ident and thread not in ended for thread in threads):
            time.sleep(0.01)  # not `join`, which a handler that raises breaks before Python 3.13


def shares(count: int) -> list[set[int]]:
    """Divide this thread's CPU affinity among `count` workers; return each worker's CPUs.

    Each worker gets the same number of adjacent cores. With fewer cores than workers, several workers share a core.
    """
    usable = os.sched_getaffinity(0)
    cores = sorted({_core_of(cpu) for cpu in usable})
    each = max(1, len(cores) // count)
    own = [[cores[(at * each + number) % len(cores)] for number in range(each)] for at in range(count)]
    return [{cpu for cpu in usable if _core_of(cpu) in mine} for mine in own]


def _core_of(cpu: int) -> tuple[int, int]:
    with suppress(OSError, ValueError):
        folder = _TOPOLOGY / f"cpu{cpu}" / "topology"
        socket, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
        return socket, core
    return 0, cpu
