"""Put back what a case changed in its process, so that the next case of the same worker finds it as it was."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class ProcessState:
    """Working directory, environment, CPU affinity and torch's global settings, as they are now."""

    def __init__(self) -> None:
        self._folder = _folder()
        self._environment = dict(os.environ)
        self._affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self._torch = _torch_settings()

    def restore(self) -> bool:
        """Put everything back that differs now; whether the process is as it was.

        It is not where torch was loaded since and its settings are not those that it starts with: whoever loaded it
        changed them, and nobody knows what else.
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
        now = _torch_settings()
        if not self._torch:
            return all(now.get(name, value) == value for name, value in _TORCH_STARTS_WITH.items())
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


# What a torch that was just loaded says, but for the threads, which the environment decides.
_TORCH_STARTS_WITH = {
    "default_dtype": "torch.float32",
    "grad_enabled": True,
    "inference_mode": False,
    "deterministic_algorithms": False,
    "matmul_precision": "highest",
    "default_device": "cpu",
    "cudnn_benchmark": False,
}


def _set_cudnn_benchmark(torch: Any, value: bool) -> None:
    torch.backends.cudnn.benchmark = value


# An inference mode that was entered and not left cannot be put back: the process ends.
_SETTERS: dict[str, Callable[[Any, Any], object]] = {
    "default_dtype": lambda torch, value: torch.set_default_dtype(getattr(torch, value.removeprefix("torch."))),
    "num_threads": lambda torch, value: torch.set_num_threads(value),
    "grad_enabled": lambda torch, value: torch.set_grad_enabled(value),
    "deterministic_algorithms": lambda torch, value: torch.use_deterministic_algorithms(value),
    "matmul_precision": lambda torch, value: torch.set_float32_matmul_precision(value),
    # Named, even the CPU would stand between every later call and its work.
    "default_device": lambda torch, value: torch.set_default_device(None if value == "cpu" else value),
    "cudnn_benchmark": _set_cudnn_benchmark,
}
