"""The device that PyTorch uses, and CUDA graphs on it."""

from collections.abc import Callable

import torch

from harness.measure import cuda_clock


def device() -> str:
    """The GPU if this process sees one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def repeatable(step: Callable[[], object]) -> Callable[[], object]:
    """Capture the step as a CUDA graph after warm-up calls; on a CPU return the step."""
    if device() == "cpu":
        return step
    with torch.inference_mode():
        return cuda_clock.repeatable(step)
