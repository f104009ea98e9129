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

    def restore(self) -> None:
        """Put everything back that differs now. Settings of a torch that was loaded since are left as they are."""
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
        for name, value in self._torch.items():
            if now.get(name) != value:
                _torch_setter(name)(value)


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
        "default_dtype": torch.get_default_dtype(),
        "num_threads": torch.get_num_threads(),
        "grad_enabled": torch.is_grad_enabled(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_device": torch.get_default_device(),
    }


def _torch_setter(name: str) -> Callable[[Any], object]:
    torch = sys.modules["torch"]
    return {
        "default_dtype": torch.set_default_dtype,
        "num_threads": torch.set_num_threads,
        "grad_enabled": torch.set_grad_enabled,
        "deterministic_algorithms": torch.use_deterministic_algorithms,
        "matmul_precision": torch.set_float32_matmul_precision,
        "default_device": torch.set_default_device,
    }[name]
