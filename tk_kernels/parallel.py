"""Compile many Triton kernels at once, before their first launch."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor  # not processes: a fork is unsafe once CUDA runs


def compile_all(calls: Iterable[Callable[[], object]]) -> None:
    """Compile the Triton kernels that `calls` launch with `warmup=True`, in one thread per core.

    A failed compilation raises no error here: the first real launch of the kernel does.
    """
    from triton import AsyncCompileMode

    with ThreadPoolExecutor(os.cpu_count()) as pool, AsyncCompileMode(pool, ignore_errors=True):
        for call in calls:
            call()
