"""Start packages that tune their Triton kernels at the first call within a case's time limit, and tune them well.

Triton compiles one kernel after another, and every candidate of each: minutes for a language model. Here work is first
run without launching any kernel, which tells all that it will need, and that is compiled side by side. Candidates and
choice stay the package's, measured on the work that is timed and not on the gate's, which is too small to tell.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tk_kernels.build.parallel import compile_all

KEEP = "TRITON_CACHE_AUTOTUNING"


def keep_choices() -> None:
    """Have Triton keep what it measures beside what it compiles; before the packages are imported."""
    os.environ.setdefault(KEEP, "1")


def prepare(run: Callable[[], object]) -> None:
    """Compile ahead what `run` needs, then run it, so that the candidates are measured on this work."""
    compile_ahead(run)
    run()


def compile_ahead(call: Callable[[], object]) -> None:
    """Compile, side by side, the Triton kernels of `call` with every candidate that is still to be measured.

    `call` is run without its Triton kernels, so what it returns means nothing; others run on what memory held.
    """
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def compiled(kernel: Any, /, *args: Any, grid: Any, warmup: bool, **arguments: Any) -> Any:
        return launch(kernel, *args, grid=None, warmup=True, **arguments)

    def unmeasured(tuner: Any, /, *args: Any, config: Any, **arguments: Any) -> list[float]:
        tuner.fn.run(*args, **arguments, **config.all_kwargs())
        return [0.0] * 3

    with _instead(JITFunction, run=compiled), _instead(Autotuner, _bench=unmeasured), _choices_forgotten():
        compile_all([call])


@contextmanager
def untuned() -> Iterator[None]:
    """Inside, a choice that is still open falls on the smallest candidate, unmeasured, and is forgotten at the end.

    For references, whose speed does not matter; large blocks in many stages may not fit into shared memory.
    """
    from triton.runtime.autotuner import Autotuner

    prune = Autotuner.prune_configs

    def smallest(tuner: Any, arguments: dict[str, Any]) -> list[Any]:
        return [min(prune(tuner, arguments), key=_size)]

    def unmeasured(tuner: Any, /, *args: Any, **arguments: Any) -> list[float]:
        return [0.0] * 3

    with _instead(Autotuner, prune_configs=smallest, _bench=unmeasured), _choices_forgotten():
        yield


@contextmanager
def chosen_anew() -> Iterator[None]:
    """Inside, kernels choose again at their first call, whatever earlier work or processes chose, and keep that.

    For packages whose choices do not depend on the shape: what is best for one sequence would serve sixteen.
    """
    from triton.runtime.autotuner import Autotuner

    run, met = Autotuner.run, set()

    def forgetful(tuner: Any, /, *args: Any, **arguments: Any) -> Any:
        if id(tuner) not in met:
            met.add(id(tuner))
            tuner.cache.clear()
        return run(tuner, *args, **arguments)

    def measured(tuner: Any, key: Any, candidates: list[Any], measure: Callable[[], None]) -> bool:
        measure()
        return False

    with _instead(Autotuner, run=forgetful, check_disk_cache=measured):
        yield


def _size(config: Any) -> int:
    """Stages times the product of the block's extents, about the shared memory that a candidate takes."""
    return config.num_stages * math.prod(
        extent for extent in config.kwargs.values() if isinstance(extent, int) and extent
    )


@contextmanager
def _choices_forgotten() -> Iterator[None]:
    """What tuners choose inside is neither kept on disk nor, at the end, in memory."""
    from triton.runtime.autotuner import Autotuner

    run, look_up = Autotuner.run, Autotuner.check_disk_cache
    chosen: list[tuple[Any, Any]] = []

    def noted(tuner: Any, /, *args: Any, **arguments: Any) -> Any:
        before = set(tuner.cache)
        try:
            return run(tuner, *args, **arguments)
        finally:
            chosen.extend((tuner, key) for key in set(tuner.cache) - before)

    def unwritten(tuner: Any, key: Any, candidates: list[Any], measure: Callable[[], None]) -> bool:
        try:
            return look_up(tuner, key, candidates, _nothing_kept)
        except _NothingKept:
            measure()
            return False

    with _instead(Autotuner, run=noted, check_disk_cache=unwritten):
        try:
            yield
        finally:
            for tuner, key in chosen:
                tuner.cache.pop(key, None)


class _NothingKept(Exception):
    """No earlier process measured these candidates."""


def _nothing_kept() -> None:
    raise _NothingKept


@contextmanager
def _instead(owner: type, **functions: Callable[..., Any]) -> Iterator[None]:
    """Other functions of a class for a while."""
    own = {name: getattr(owner, name) for name in functions}
    for name, function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for name, function in own.items():
            setattr(owner, name, function)
