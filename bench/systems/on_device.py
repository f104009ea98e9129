"""The device that PyTorch uses, and CUDA graphs on it."""

from collections.abc import Callable

import torch

from harness.measure import cuda_clock


def device() -> str:
    """Return "cuda" if this process sees a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def repeatable(step: Callable[[], object]) -> Callable[[], object]:
    """Run and capture `step`; return a CUDA-graph replay function, on a CPU `step` itself."""
    if device() == "cpu":
        return step
    with torch.inference_mode():
        return cuda_clock.repeatable(step)
