"""Compile a package's Triton kernels in parallel, and tune them on the timed shapes.

Triton compiles kernels one by one, which takes minutes for a language model. So the model first runs without launching
its kernels, to list them for parallel compilation. Then Triton's autotuner measures them on the timed work.
Triton has no option for this, so JITFunction.run and two methods of Autotuner are replaced meanwhile.
"""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tk_kernels.parallel import compile_all


def prepare(run: Callable[[], object]) -> None:
    """Compile the Triton kernels of `run` in parallel, then call `run` once to tune them."""
    compile_ahead(run)
    run()


def compile_ahead(call: Callable[[], object]) -> None:
    """Compile the Triton kernels of `call` in parallel, for all configurations of the autotuner.

    `call` runs, but its Triton kernels are not launched, so its result is meaningless.
    """

    def compiled(tuner: Any, config: Any, *args: Any, **arguments: Any) -> float:
        tuner.fn.run(*args, **arguments, **config.all_kwargs())
        return 0.0

    with _choosing_by(compiled), _compiling_only():
        compile_all([call])


@contextmanager
def untuned(ahead: Callable[[], object]) -> Iterator[None]:
    """In the context, kernels that this process has not tuned run in their smallest config.

    Tuning would take minutes, and an unmeasured larger config could exceed shared memory.
    ahead: called on entry; its Triton kernels are compiled in parallel, but not launched.
    """
    with _choosing_by(_size):
        with _compiling_only():
            compile_all([ahead])
        yield


@contextmanager
def retuning() -> Iterator[None]:
    """Let loaded Triton autotuners tune again in the context, ignoring memory and disk caches."""
    from triton.runtime.autotuner import Autotuner

    tuners = [each for each in gc.get_objects() if issubclass(type(each), Autotuner)]
    cached_on_disk = [tuner.cache_results for tuner in tuners]
    for tuner in tuners:
        tuner.cache.clear()  # some packages cache one choice for all shapes
        tuner.cache_results = False
    try:
        yield
    finally:
        for tuner, on_disk in zip(tuners, cached_on_disk, strict=True):
            tuner.cache_results = on_disk


def _size(tuner: Any, config: Any, *args: Any, **arguments: Any) -> float:
    """Return a proxy for a config's shared memory: stages times all block sizes."""
    return config.num_stages * math.prod(size for size in config.kwargs.values() if isinstance(size, int) and size)


@contextmanager
def _choosing_by(cost: Callable[..., float]) -> Iterator[None]:
    """In the context, untuned kernels take the config of least `cost`; exit forgets the choices."""
    from triton.runtime.autotuner import Autotuner

    before: dict[Any, set[Any]] = {}

    def unmeasured(tuner: Any, /, *args: Any, config: Any, **arguments: Any) -> list[float]:
        before.setdefault(tuner, set(tuner.cache))
        return [cost(tuner, config, *args, **arguments)] * 3

    def not_on_disk(tuner: Any, /, key: Any, configs: Any, choose: Callable[[], object]) -> bool:
        choose()
        return False

    with patch.object(Autotuner, "_bench", unmeasured), patch.object(Autotuner, "check_disk_cache", not_on_disk):
        try:
            yield
        finally:
            for tuner, known in before.items():
                for key in set(tuner.cache) - known:
                    del tuner.cache[key]


@contextmanager
def _compiling_only() -> Iterator[None]:
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def compiled(kernel: Any, /, *args: Any, grid: Any, warmup: bool, **arguments: Any) -> Any:
        return launch(kernel, *args, grid=None, warmup=True, **arguments)

    with patch.object(JITFunction, "run", compiled):
        yield
