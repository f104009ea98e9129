"""Read this process's peak memory and global settings, and recognise out-of-memory errors."""

import gc
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_PROCESS = Path("/proc/self")
_OUT_OF_MEMORY = (
    "out of memory",  # of PyTorch, CUDA or Triton
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)


def reset_peak(device: str) -> None:
    """Restart the peak of `peak_bytes` from the memory in use now. device: "cuda" or "cpu"."""
    if device == "cuda":
        import torch

        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):  # forbidden on some systems, where the peak includes earlier cases
        (_PROCESS / "clear_refs").write_text("5")


def peak_bytes(device: str) -> int:
    """Return the peak memory in bytes since the last `reset_peak`.

    device "cuda": peak of torch's allocator, including weights.
    device "cpu": peak resident memory of this process, including the interpreter and libraries.
    """
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    lines = (_PROCESS / "status").read_text().splitlines()
    peaks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]  # some sandboxes lack it
    return 1024 * (peaks or [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss])[0]


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an exception or one of its causes reports exhausted host or device memory."""
    for _ in range(20):  # causes may form a loop
        if error is None:
            return False
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        # Libraries that call CUDA themselves raise a plain RuntimeError.
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def process_settings() -> dict[str, Any]:
    """Return working directory, CPU affinity and, if imported, torch's global settings."""
    settings: dict[str, Any] = {"folder": os.readlink(_PROCESS / "cwd"), "affinity": os.sched_getaffinity(0)}
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return settings
    return settings | {
        "default_dtype": str(torch.get_default_dtype()),
        "num_threads": torch.get_num_threads(),
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_device": str(torch.get_default_device()),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }
