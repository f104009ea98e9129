"""Peak memory of a case, and whether an error says that memory ended."""

import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

_PROCESS = Path("/proc/self")
_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)


class PeakMemory(Protocol):
    """The most bytes held between `start` and `peak_bytes`."""

    def start(self) -> None: ...

    def peak_bytes(self) -> int | None: ...


class CudaPeak:
    """What torch's allocator held at most, weights included; other allocators are not seen."""

    def start(self) -> None:
        """Forget earlier peaks; what is allocated now counts."""
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak_bytes(self) -> int:
        """Bytes since `start`."""
        import torch

        return torch.cuda.max_memory_allocated()


class ResidentPeak:
    """The largest resident set of this process, interpreter and libraries included.

    Linux resets its high-water mark through /proc/self/clear_refs. Where that is forbidden, the mark is the
    process's since it started, so that an earlier, larger case of the same worker hides this one; where there is no
    /proc, ru_maxrss serves, which may even be inherited from the process that started this one.
    """

    def start(self) -> None:
        """Reset the high-water mark where that is allowed."""
        try:
            (_PROCESS / "clear_refs").write_text("5")
        except OSError:
            return

    def peak_bytes(self) -> int:
        """Bytes since `start`, or since the process started."""
        return _high_water_bytes() or _maximum_bytes()


def _high_water_bytes() -> int:
    try:
        status = (_PROCESS / "status").read_text()
    except OSError:
        return 0
    marks = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(marks[0]) * 1024 if marks else 0


def _maximum_bytes() -> int:
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, or what caused it, says that memory ended on the host or on the device."""
    return any(_says_out_of_memory(each) for each in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _says_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    # Libraries that call CUDA themselves raise a plain RuntimeError.
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
