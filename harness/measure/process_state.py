"""Memory and settings of this process: peak, out-of-memory errors, state to restore."""

import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_PROCESS = Path("/proc/self")
_OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
)


def forget_peak(device: str) -> None:
    """Reset the peak of `peak_bytes` to the memory now allocated.

    device: "cuda" or "cpu".
    Some systems forbid a reset on the CPU. A larger case earlier in this process then hides the peak of a later case.
    """
    if device == "cuda":
        import gc

        import torch

        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")


def peak_bytes(device: str) -> int:
    """Return the peak memory since `forget_peak` in bytes.

    device: "cuda" for the memory of torch's allocator, including weights, without memory of other allocators.
        "cpu" for the largest resident set of this process, including interpreter and libraries.
    """
    if device == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    try:
        lines = (_PROCESS / "status").read_text().splitlines()
    except OSError:
        lines = []
    marks = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return 1024 * (marks[0] if marks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


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


class ProcessState:
    """Working directory, environment, CPU affinity and torch's settings at creation.

    `restore` sets them again after a case. If torch was not yet imported at creation, its settings are not restored.
    """

    def __init__(self) -> None:
        self._folder = _folder()
        self._environment = dict(os.environ)
        self._affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._torch = _torch_settings()

    def restore(self) -> bool:
        """Restore all saved settings; return whether torch's settings are as before.

        They are not if the case left torch's inference mode on, which cannot be switched off from outside.
        """
        if self._folder and _folder() != self._folder:
            with suppress(OSError):
                os.chdir(self._folder)
        if dict(os.environ) != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if self._affinity and os.sched_getaffinity(0) != self._affinity:
            with suppress(OSError):
                os.sched_setaffinity(0, self._affinity)
        if not self._torch:
            return True
        now = _torch_settings()
        for name, value in self._torch.items():
            if now[name] != value and name in _SETTERS:
                _SETTERS[name](sys.modules["torch"], value)
        return _torch_settings() == self._torch


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _torch_settings() -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_default_dtype"):
        return {}
    return {
        "default_dtype": str(torch.get_default_dtype()),
        "num_threads": torch.get_num_threads(),
        "grad_enabled": torch.is_grad_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_device": str(torch.get_default_device()),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
    }


# There is no setter for an inference mode that a case entered: the process must end.
_SETTERS: dict[str, Callable[[Any, Any], object]] = {
    "default_dtype": lambda torch, value: torch.set_default_dtype(getattr(torch, value.removeprefix("torch."))),
    "num_threads": lambda torch, value: torch.set_num_threads(value),
    "grad_enabled": lambda torch, value: torch.set_grad_enabled(value),
    "deterministic_algorithms": lambda torch, value: torch.use_deterministic_algorithms(value),
    "matmul_precision": lambda torch, value: torch.set_float32_matmul_precision(value),
    # None: a named device, even the CPU, adds a dispatch to every later call.
    "default_device": lambda torch, value: torch.set_default_device(None if value == "cpu" else value),
    "cudnn_benchmark": lambda torch, value: setattr(torch.backends.cudnn, "benchmark", value),
}
