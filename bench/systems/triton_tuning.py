"""How do packages that tune their Triton kernels at the first call start within a case's time limit?

Triton compiles the candidates of a kernel one after another, minutes for a language model. Here they are compiled side
by side, and what was measured of them is kept in Triton's cache: candidates, measure and choice stay the package's.
"""

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import cache
from typing import Any

KEEP = "TRITON_CACHE_AUTOTUNING"


@cache
def tune_side_by_side() -> None:
    """Change Triton's tuner in this process; before the packages are imported, as each kernel makes its own."""
    os.environ.setdefault(KEEP, "1")
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # the package that needs it will say so
        return
    Autotuner.prune_configs, Autotuner._bench = compiling_first(Autotuner.prune_configs, Autotuner._bench, _compile)


def compiling_first(
    prune: Callable[..., list[Any]],
    measure: Callable[..., Any],
    compile_all: Callable[[Any, dict[str, Any], list[Any]], None],
) -> tuple[Callable[..., list[Any]], Callable[..., Any]]:
    """`prune(tuner, arguments)` names the candidates; before `measure` sees the first of them all are compiled.

    Nothing is compiled where an earlier process measured them.
    """

    def pruned(tuner: Any, arguments: dict[str, Any]) -> list[Any]:
        tuner.candidates = prune(tuner, arguments)
        return tuner.candidates

    def measured(tuner: Any, *args: Any, config: Any, **arguments: Any) -> Any:
        candidates, tuner.candidates = tuner.candidates, []
        if len(candidates) > 1:
            compile_all(tuner, arguments, candidates)
        return measure(tuner, *args, config=config, **arguments)

    return pruned, measured


def _compile(tuner: Any, arguments: dict[str, Any], candidates: list[Any]) -> None:
    """Compile `candidates` for the arguments of this call; one that fails is left for the tuner to find out."""
    from triton import AsyncCompileMode

    given = {name: value for name, value in {**tuner.nargs, **arguments}.items() if name not in ("grid", "warmup")}
    pool = ForkedProcesses(os.cpu_count() or 1)
    with AsyncCompileMode(pool, ignore_errors=True):
        try:
            for candidate in candidates:
                tuner.fn.run(grid=None, warmup=True, **{**given, **candidate.all_kwargs()})
        finally:  # Triton waits for what was begun
            pool.work()


class ForkedProcesses(Executor):
    """Does its tasks in forked processes, then here: for tasks whose work is kept on disk, as compiled kernels are.

    Much of a compilation holds Python's lock, so threads would wait for one another. The children touch no GPU.
    """

    def __init__(self, processes: int) -> None:
        self._processes = processes
        self._tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, task: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        """See Executor; the task waits for `work`."""
        future: Future[Any] = Future()
        self._tasks.append((future, task))
        return future

    def work(self) -> None:
        """Do all tasks and set their futures."""
        tasks = [task for _, task in self._tasks]
        count = min(self._processes, len(tasks))
        for child in [_forked(tasks[first::count]) for first in range(count)]:
            os.waitpid(child, 0)
        for future, task in self._tasks:
            try:
                future.set_result(task())
            except Exception as error:
                future.set_exception(error)


def _forked(tasks: list[Callable[[], Any]]) -> int:
    """The id of a child that does `tasks`, whatever they raise, and ends."""
    child = os.fork()
    if child:
        return child
    for task in tasks:
        with suppress(BaseException):
            task()
    os._exit(0)
