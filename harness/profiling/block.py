"""Profile a block of any script with torch.profiler (Kineto)."""

from collections.abc import Iterator
from contextlib import contextmanager

from harness.measure.cuda_clock import wait_for
from harness.profiling.tools import kineto
from harness.profiling.tools.trace import region_fields
from harness.schema.profile import ProfileError, Region


class Profiled:
    """Result of `profiled`: `region` has the block's kernels and times, unless the block raises an exception."""

    region: Region


@contextmanager
def profiled(device: str = "", units: int = 1) -> Iterator[Profiled]:
    """Profile the block, as README.md shows; each `nvtx_range` in the block becomes a range of the result.

    device: by default "cuda" on a machine with a GPU, else "cpu".
    units: units of work in the block, such as calls of a model; the result also has times per unit.
    Raises ValueError for wrong arguments, and ProfileError with a second profiler or if nothing ran in this thread.
    """
    import torch
    from torch.autograd import profiler

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device {device!r}: must be cpu, or cuda on a machine with a GPU")
    if units < 1:
        raise ValueError(f"units is {units}, must be at least 1")
    if profiler._is_profiler_enabled:  # in any thread
        raise ProfileError("`profiled` inside another profiler: torch.profiler records one at a time")
    wait_for(device)
    found = Profiled()
    with kineto.recording(device, with_ranges=True) as launched:
        yield found
        if not profiler._is_profiler_enabled:  # torch would end the process when it exports the trace
            raise ProfileError("a profiler inside the block ended this recording: torch.profiler records one at a time")
    found.region = Region(units=units, **region_fields(launched, launched))
