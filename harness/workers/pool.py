"""Run jobs on several GPUs of one host: a job per GPU, each GPU with its CPU cores."""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, Queue
from typing import TypeVar

from harness.measure.environment import DEVICE_ORDER
from harness.measure.nvml import VARIABLE, open_gpu
from harness.workers.process import DEFAULT_SLOT, GpuSlot

T = TypeVar("T")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def slots_of(gpus: Sequence[str], device: str) -> list[GpuSlot]:
    """Return a slot per GPU; without `gpus`, one slot for the default GPU or the CPU.

    gpus: names as in CUDA_VISIBLE_DEVICES. device: "cuda" makes the single slot notice a lost GPU.
    """
    if device == "cuda" and not gpus and _device_id():
        return [replace(DEFAULT_SLOT, is_there=lambda: bool(_device_id()))]
    return [_gpu_slot(gpu) for gpu in gpus] or [DEFAULT_SLOT]


def _gpu_slot(gpu: str) -> GpuSlot:
    device_id = _device_id(gpu)
    env = {VARIABLE: gpu, **DEVICE_ORDER}
    return GpuSlot(f"GPU {gpu}", env, device_id, lambda: _device_id(gpu) == device_id)


def _device_id(gpu: str | None = None) -> str:
    found = open_gpu(gpu)
    return found.constants()["device_id"] if found else ""


@dataclass
class Pool:
    """Runs jobs on GPU slots: one in the caller's thread, several in a thread each.

    stop: set when all jobs should end.
    """

    slots: Sequence[GpuSlot]
    stop: threading.Event = field(default_factory=threading.Event)

    def each(self, jobs: Iterable[T], do: Callable[[T, GpuSlot], object]) -> None:
        """Run the jobs in order, each on the next free slot.

        do: runs a job on a slot. It must raise Stopped once `stop` is set.
        If a job raises an exception, or at Ctrl-C, all jobs end.
        """
        waiting: Queue[T] = Queue()
        for job in jobs:
            waiting.put(job)
        if len(self.slots) == 1:
            self._take_turns(waiting, self.slots[0], do)
        else:
            self._in_threads(waiting, do)

    def _in_threads(self, waiting: Queue[T], do: Callable[[T, GpuSlot], object]) -> None:
        """Run waiting jobs, a thread per slot; at the end, raise the first exception of a job."""
        errors: list[BaseException] = []

        def serve(slot: GpuSlot, cores: frozenset[int], ended: threading.Event) -> None:
            try:
                if cores:
                    os.sched_setaffinity(0, cores)  # of this thread and its workers
                self._take_turns(waiting, slot, do)
            except BaseException as error:
                if not self.stop.is_set():
                    errors.append(error)
                self.stop.set()
            finally:
                ended.set()

        under_way: list[threading.Event] = []  # one for each thread, set when it ends
        try:
            for slot, cores in zip(self.slots, cores_by_share(len(self.slots)), strict=True):
                # A thread lives as long as its workers: the kernel kills a worker with the thread that started it.
                ended = threading.Event()
                threading.Thread(target=serve, args=(slot, cores, ended), daemon=True).start()
                under_way.append(ended)
            _wait_for(under_way)
        finally:
            self.stop.set()
            _wait_for(under_way)
        if errors:
            raise errors[0]

    def _take_turns(self, waiting: Queue[T], slot: GpuSlot, do: Callable[[T, GpuSlot], object]) -> None:
        while not self.stop.is_set():
            try:
                job = waiting.get_nowait()
            except Empty:
                return
            do(job, slot)


def _wait_for(under_way: Iterable[threading.Event]) -> None:
    """Wait in short steps: before Python 3.13, a handler that raises breaks `Thread.join`."""
    for ended in under_way:
        while not ended.wait(0.2):
            pass


def cores_by_share(count: int) -> list[frozenset[int]]:
    """Return each worker's share of this thread's CPUs; empty sets without CPU affinity."""
    return shares(_cores(), count)


def shares(cores: Sequence[tuple[int, ...]], count: int) -> list[frozenset[int]]:
    """Return CPUs of adjacent cores for each of `count` workers, in equal numbers.

    cores: the logical CPUs of each core. With fewer cores than workers, several workers share a core.
    """
    if not cores:
        return [frozenset()] * count
    if len(cores) < count:
        return [frozenset(cores[number % len(cores)]) for number in range(count)]
    each = len(cores) // count
    return [frozenset(cpu for core in cores[at * each : (at + 1) * each] for cpu in core) for at in range(count)]


def _cores() -> list[tuple[int, ...]]:
    """Return the logical CPUs of each usable core, by socket and core; [] without CPU affinity."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    by_core: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        by_core.setdefault(_core_of(cpu), []).append(cpu)
    return [tuple(by_core[core]) for core in sorted(by_core)]


def _core_of(cpu: int) -> tuple[int, int]:
    with suppress(OSError, ValueError):
        folder = _TOPOLOGY / f"cpu{cpu}" / "topology"
        socket, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
        return socket, core
    return 0, cpu
