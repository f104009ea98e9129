"""Compile many Triton kernels at once, before their first launch."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any


def compile_all(calls: Iterable[Callable[[], object]]) -> None:
    """Compile the Triton kernels that `calls` launch with `warmup=True`, a process per core.

    A failed compilation raises no error here: the first real launch of the kernel reports it.
    """
    from triton import AsyncCompileMode

    pool = ForkedProcesses(os.cpu_count() or 1)
    with AsyncCompileMode(pool, ignore_errors=True):
        try:
            for call in calls:
                call()
        finally:  # at the exit Triton waits for every submitted task
            pool.work()


class ForkedProcesses(Executor):
    """Compile Triton kernels in forked processes, because threads would wait for Python's lock.

    Each task runs in a child, which fills Triton's cache on disk, and then in this process. The children touch no GPU.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, task: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        """Queue a task, and return the future that `work` will set."""
        future: Future[Any] = Future()
        self._tasks.append((future, task))
        return future

    def work(self) -> None:
        """Run the queued tasks in children, then again here, and set the tasks' futures."""
        tasks = [task for _, task in self._tasks]
        count, children = min(self._processes, len(tasks)), []
        with suppress(OSError):  # no memory for another process: the tasks run below
            for first in range(count):
                child = os.fork()
                if not child:
                    for task in tasks[first::count]:
                        with suppress(BaseException):
                            task()
                    os._exit(0)
                children.append(child)
        for child in children:
            os.waitpid(child, 0)
        for future, task in self._tasks:
            try:
                future.set_result(task())
            except Exception as error:
                future.set_exception(error)
