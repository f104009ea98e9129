"""NVTX ranges around the timed work, for profilers, and the range of the CUDA profiler interface."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

OPERATOR = "operator"  # a layer's inner loop, inside the layer's range
COUNTED = 1  # the layer whose counters represent all layers
TIMED = "timed"  # the timed runs
LEAD = "lead"  # the runs before the timed ones, which no profile shows


class _Recording:
    """Global state. on: PyTorch's profiler records ranges (microseconds each). entered: called with each name."""

    on = False
    entered: Callable[[str], object] | None = None


def layer_name(index: int) -> str:
    """Return the name of a layer's range: "layer 0" for the first."""
    return f"layer {index}"


COUNTED_LAYER = layer_name(COUNTED)


def is_layer(name: str) -> bool:
    """Return whether `name` is that of a layer's range."""
    word, _, index = name.partition(" ")
    return word == "layer" and index.isdecimal()


def range_name(phase: str) -> str:
    """Return the name of a phase's range; that of a forward is `prefill`."""
    return "prefill" if phase == "forward" else phase


def range_names(phase: str) -> tuple[str, ...]:
    """Return the names of a phase's ranges, the outermost first."""
    return (range_name(phase), "prefill", "generate") if phase == "request" else (range_name(phase),)


@contextmanager
def recorded(on: bool = True) -> Iterator[None]:
    """Let PyTorch's profiler record each `nvtx_range` of the block, or none if not `on`."""
    before, _Recording.on = _Recording.on, on
    try:
        yield
    finally:
        _Recording.on = before


@contextmanager
def on_range(entered: Callable[[str], object]) -> Iterator[None]:
    """Call `entered` with the name of each `nvtx_range` of the block before it begins."""
    before, _Recording.entered = _Recording.entered, entered
    try:
        yield
    finally:
        _Recording.entered = before


def is_recorded() -> bool:
    """Return whether PyTorch's profiler records the ranges."""
    return _Recording.on


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Run the block in an NVTX range if PyTorch uses CUDA, and in a range of PyTorch's profiler if `recorded`."""
    if _Recording.entered:
        _Recording.entered(name)
    if _Recording.on:
        from torch.profiler import record_function
    with _nvtx(name), record_function(name) if _Recording.on else nullcontext():
        yield


@contextmanager
def _nvtx(name: str) -> Iterator[None]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        yield
        return
    torch.cuda.nvtx.range_push(name)
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


@contextmanager
def profiler_range(device: str) -> Iterator[None]:
    """Run the block between cudaProfilerStart and cudaProfilerStop; on a CPU, without them."""
    if device != "cuda":
        yield
        return
    import torch

    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
