"""Where does a profiler find the timed work? NVTX ranges and the range of the CUDA profiler interface."""

from collections.abc import Iterator
from contextlib import contextmanager


def range_name(phase: str) -> str:
    """What a profiler calls the work of a phase: a forward is a `prefill`, the field's word for it."""
    return "prefill" if phase == "forward" else phase


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A push/pop range called `name`; nothing where nvtx is not installed."""
    try:
        import nvtx
    except ImportError:
        yield
        return
    nvtx.push_range(name)
    try:
        yield
    finally:
        nvtx.pop_range()


@contextmanager
def profiler_range(device: str) -> Iterator[None]:
    """cudaProfilerStart to cudaProfilerStop, for profilers told to capture only that; nothing on a CPU."""
    if device != "cuda":
        yield
        return
    import torch

    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
