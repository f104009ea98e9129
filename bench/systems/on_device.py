"""Where PyTorch computes, and what is launched there again and again."""

from collections.abc import Callable

import torch

from harness.cuda_clock import side_stream


def device() -> str:
    """The GPU where this process sees one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def repeatable(step: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph, after the first calls that compile it; on a CPU the step itself."""
    if device() == "cpu":
        return step
    graph, aside = torch.cuda.CUDAGraph(), side_stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode():
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(aside)
        with torch.cuda.graph(graph):
            step()
    return graph.replay
