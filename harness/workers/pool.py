"""Run jobs on several GPUs of one host: a job per GPU, each GPU with its CPU cores."""

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from harness.measure.environment import DEVICE_ORDER
from harness.measure.nvml import VARIABLE, open_gpu
from harness.schema.reason import counted
from harness.schema.run_file import RunError
from harness.workers.process import DEFAULT_SLOT, GpuLost, GpuSlot

T = TypeVar("T")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def slots_of(gpus: Sequence[str], device: str) -> list[GpuSlot]:
    """Return a slot per GPU, or without `gpus` one slot for the default GPU or the CPU.

    gpus: names of GPUs as in CUDA_VISIBLE_DEVICES.
    device: "cuda" makes the single slot notice when no GPU answers any more.
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

    folder: the run's folder, for messages.
    say: called with a sentence for each GPU that does not answer any more.
    stop: set when all jobs should end.
    """

    folder: Path
    slots: Sequence[GpuSlot]
    say: Callable[[str], object]
    stop: threading.Event = field(default_factory=threading.Event)

    def each(self, jobs: Iterable[T], do: Callable[[T, GpuSlot], object]) -> None:
        """Run the jobs in order, each on the next free slot.

        With several slots, `stop` is set at the end.
        do: runs a job on a slot. It must raise GpuLost if the slot's GPU does not answer any more, and Stopped once
            `stop` is set. A job with a lost GPU runs again on another slot.
        Raises RunError if no GPU is left. If a job raises another exception, or at Ctrl-C, all jobs end.
        """
        if len(self.slots) == 1:
            self._alone(jobs, do)
            return
        queue = _Queue(jobs)
        errors: list[BaseException] = []
        under_way: list[threading.Event] = []  # one for each thread, set when it ends
        try:
            for slot, cores in zip(self.slots, cores_by_share(len(self.slots)), strict=True):
                # A thread lives as long as its workers: the kernel kills a worker with the thread that started it.
                ended = threading.Event()
                threading.Thread(target=self._serve, args=(queue, slot, cores, do, errors, ended), daemon=True).start()
                under_way.append(ended)
            _wait_for(under_way)
        finally:
            self.stop.set()
            _wait_for(under_way)
        if errors:
            raise errors[0]
        if left := queue.left():
            raise RunError(
                f"{self.folder}: no GPU answers any more, {counted(len(left), 'job')} unfinished; "
                "finished cases are stored; continue with --resume"
            )

    def _alone(self, jobs: Iterable[T], do: Callable[[T, GpuSlot], object]) -> None:
        try:
            for job in jobs:
                do(job, self.slots[0])
        except GpuLost:
            gone = self.slots[0].name or "the GPU"
            why = "does not answer any more; finished cases are stored; continue with --resume"
            raise RunError(f"{self.folder}: {gone} {why}") from None

    def _serve(
        self,
        queue: "_Queue[T]",
        slot: GpuSlot,
        cores: frozenset[int],
        do: Callable[[T, GpuSlot], object],
        errors: list[BaseException],
        ended: threading.Event,
    ) -> None:
        """Run jobs of `queue` on one slot until no job is left or the slot's GPU is lost.

        cores: the CPUs of the slot's workers; empty for no restriction.
        errors: gets the exception of a failed job, which also sets `stop`. ended: set at the end.
        """
        try:
            if cores:
                os.sched_setaffinity(0, cores)  # of this thread and its workers
            while (job := queue.take(self.stop.is_set)) is not None:
                lost = False
                try:
                    do(job, slot)
                except GpuLost:
                    lost = True
                finally:
                    queue.done(job if lost else None)
                if lost:
                    self.say(f"{slot.name} does not answer any more; the other GPUs run its jobs")
                    return
        except BaseException as error:
            if not self.stop.is_set():
                errors.append(error)
            self.stop.set()
        finally:
            ended.set()


def _wait_for(under_way: Iterable[threading.Event]) -> None:
    """Wait until all events are set, in short steps so that signal handlers can run in between.

    `Thread.join` is no alternative. Before Python 3.13, if a signal handler raises during `join`, the thread counts as
    ended.
    """
    for ended in under_way:
        while not ended.wait(0.2):
            pass


class _Queue(Generic[T]):
    """Queue of jobs for several slots.

    A job whose GPU is lost comes back to the queue. An idle slot therefore waits as long as other slots run jobs.
    """

    def __init__(self, jobs: Iterable[T]) -> None:
        self._jobs = list(jobs)
        self._running, self._changed = 0, threading.Condition()

    def take(self, stopped: Callable[[], bool]) -> T | None:
        """Remove and return the next job, after waiting for one that can come back.

        Return None if no job is left, or once `stopped` returns True.
        """
        with self._changed:
            while not self._jobs and self._running and not stopped():
                self._changed.wait(0.2)
            if not self._jobs or stopped():
                return None
            self._running += 1
            return self._jobs.pop(0)

    def done(self, back: T | None = None) -> None:
        """Note that a job of `take` has ended.

        back: the job to put back if its GPU was lost, otherwise None.
        """
        with self._changed:
            self._running -= 1
            if back is not None:
                self._jobs.insert(0, back)
            self._changed.notify_all()

    def left(self) -> list[T]:
        """Return the jobs that are still in the queue."""
        return self._jobs


def cores_by_share(count: int) -> list[frozenset[int]]:
    """Return each of `count` workers' share of this thread's CPUs, as in `shares`.

    The sets are empty if this system cannot set CPU affinity.
    """
    return shares(_cores(), count)


def shares(cores: Sequence[tuple[int, ...]], count: int) -> list[frozenset[int]]:
    """Return the CPUs of adjacent cores for each of `count` workers, in equal numbers.

    cores: the logical CPUs of each core. With fewer cores than workers, several workers share a core.
    """
    if not cores:
        return [frozenset()] * count
    if len(cores) < count:
        return [frozenset(cores[number % len(cores)]) for number in range(count)]
    each = len(cores) // count
    return [frozenset(cpu for core in cores[at * each : (at + 1) * each] for cpu in core) for at in range(count)]


def _cores() -> list[tuple[int, ...]]:
    """Return the logical CPUs of each core that this thread can use, sorted by socket and core.

    The list is empty if this system cannot set CPU affinity.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    by_core: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        by_core.setdefault(_core_of(cpu), []).append(cpu)
    return [tuple(by_core[core]) for core in sorted(by_core)]


def _core_of(cpu: int) -> tuple[int, int]:
    """Return the numbers (socket, core) of a logical CPU; (0, cpu) if unknown."""
    with suppress(OSError, ValueError):
        folder = _TOPOLOGY / f"cpu{cpu}" / "topology"
        socket, core = (int((folder / name).read_text()) for name in ("physical_package_id", "core_id"))
        return socket, core
    return 0, cpu
