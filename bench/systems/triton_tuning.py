"""Start packages that tune Triton kernels at the first call within a case's time limit; tune on the timed shapes.

Triton compiles one kernel after another, and every candidate of each: minutes for a language model. Here work is first
run without launching any kernel, which tells all that it will need, and that is compiled side by side. Candidates and
choice stay the package's, measured on the work that is timed and not on the gate's, which is too small to tell.

What is kept on disk goes by Triton's knobs, what a process has chosen by the tuners' own `cache`. Two functions are
replaced for a while, JITFunction.run and Autotuner._bench: a package calls its kernels as `kernel[grid](...)`, and no
knob makes such a call compile without a launch, nor a tuner choose without measuring.
"""

import gc
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tk_kernels.build.parallel import compile_all

KEEP = "TRITON_CACHE_AUTOTUNING"
CHOICE = ".autotune.json"  # how the name of the file ends in which Triton keeps what it measured


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

    def compiled(tuner: Any, config: Any, *args: Any, **arguments: Any) -> float:
        tuner.fn.run(*args, **arguments, **config.all_kwargs())
        return 0.0

    with _chosen_by(compiled), _compiling_only():
        compile_all([call])


@contextmanager
def untuned(ahead: Callable[[], object]) -> Iterator[None]:
    """Inside, a choice that is still open falls on the smallest candidate, unmeasured, and is forgotten at the end.

    What `ahead` needs is compiled first. For references, whose speed does not matter; large blocks in many stages may
    not fit into shared memory.
    """
    with _chosen_by(_size):
        with _compiling_only():
            compile_all([ahead])
        yield


@contextmanager
def chosen_anew() -> Iterator[None]:
    """Inside, kernels choose again at their first call, whatever earlier work or processes chose, and keep that.

    For packages whose choices do not depend on the shape: what is best for one sequence would serve sixteen.
    """
    from triton.runtime.autotuner import Autotuner

    tuners = [each for each in gc.get_objects() if issubclass(type(each), Autotuner)]
    on_disk = [tuner.cache_results for tuner in tuners]
    for tuner in tuners:
        tuner.cache.clear()
        tuner.cache_results = False
    try:
        yield
    finally:
        for tuner, kept in zip(tuners, on_disk, strict=True):
            tuner.cache_results = kept


def _size(tuner: Any, config: Any, *args: Any, **arguments: Any) -> float:
    """Stages times the product of the block's extents, about the shared memory that a candidate takes."""
    return config.num_stages * math.prod(
        extent for extent in config.kwargs.values() if isinstance(extent, int) and extent
    )


@contextmanager
def _chosen_by(cost: Callable[..., float]) -> Iterator[None]:
    """Inside, tuners choose by cost(tuner, config, *args, **arguments); their choices go neither to disk nor last."""
    from triton import knobs
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.cache import FileCacheManager

    class ChoicesUnwritten(knobs.cache.manager_class or FileCacheManager):  # type: ignore[misc]
        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            return "" if filename.endswith(CHOICE) else super().put(data, filename, binary)

    before: dict[Any, set[Any]] = {}

    def unmeasured(tuner: Any, /, *args: Any, config: Any, **arguments: Any) -> list[float]:
        before.setdefault(tuner, set(tuner.cache))
        return [cost(tuner, config, *args, **arguments)] * 3

    with knobs.cache.scope(), _instead(Autotuner, "_bench", unmeasured):
        knobs.cache.manager_class = ChoicesUnwritten
        try:
            yield
        finally:
            for tuner, known in before.items():
                for key in set(tuner.cache) - known:
                    del tuner.cache[key]


@contextmanager
def _compiling_only() -> Iterator[None]:
    """Inside, a call of a kernel compiles it and launches nothing."""
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def compiled(kernel: Any, /, *args: Any, grid: Any, warmup: bool, **arguments: Any) -> Any:
        return launch(kernel, *args, grid=None, warmup=True, **arguments)

    with _instead(JITFunction, "run", compiled):
        yield


@contextmanager
def _instead(owner: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Another function of a class for a while."""
    own = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, own)
