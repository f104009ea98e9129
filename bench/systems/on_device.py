"""Where PyTorch computes, and what is launched there again and again."""

from collections.abc import Callable

import torch

from harness.measure import cuda_clock


def device() -> str:
    """The GPU where this process sees one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def repeatable(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph, after the first calls that compile it; on a CPU the step itself."""
    if device() == "cpu":
        return step
    with torch.inference_mode():
        return cuda_clock.repeatable(step)
