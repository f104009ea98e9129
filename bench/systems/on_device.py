"""The device that PyTorch uses, and CUDA graphs on it."""

from collections.abc import Callable

import torch

from harness.measure import cuda_clock


def device() -> str:
    """Return "cuda" if this process sees a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def repeatable(step: Callable[[], object]) -> Callable[[], object]:
    """Run `step`, capture it in a CUDA graph and return the replay; on a CPU, only return `step`."""
    if device() == "cpu":
        return step
    with torch.inference_mode():
        return cuda_clock.repeatable(step)
