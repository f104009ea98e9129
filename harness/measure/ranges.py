"""NVTX ranges, and the range from cudaProfilerStart to cudaProfilerStop for Nsight tools."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

OPERATOR = "operator"  # a layer's inner loop, inside the layer's range
COUNTED = 1  # the layer whose counters represent all layers
TIMED = "timed"  # the timed runs
LEAD = "lead"  # the runs before the timed ones, which no profile shows


class _Recording:
    on = False
    entered: Callable[[str], object] | None = None


def layer_name(index: int) -> str:
    """Return the name of a layer's range, such as "layer 0"."""
    return f"layer {index}"


COUNTED_LAYER = layer_name(COUNTED)


def is_layer(name: str) -> bool:
    """Whether `name` is a layer's range, such as "layer 0"."""
    word, _, index = name.partition(" ")
    return word == "layer" and index.isdecimal()


def range_names(phase: str) -> tuple[str, ...]:
    """Return the names of a phase's NVTX ranges; "request" contains "forward" and "generate"."""
    return ("request", "forward", "generate") if phase == "request" else (phase,)


@contextmanager
def recorded(on: bool = True) -> Iterator[None]:
    """Set whether `nvtx_range` also opens a torch.profiler range in the block."""
    before, _Recording.on = _Recording.on, on
    try:
        yield
    finally:
        _Recording.on = before


@contextmanager
def on_range(entered: Callable[[str], object]) -> Iterator[None]:
    """Call `entered` with the name of each `nvtx_range` in the block, before that range begins."""
    before, _Recording.entered = _Recording.entered, entered
    try:
        yield
    finally:
        _Recording.entered = before


def is_recorded() -> bool:
    """Whether `nvtx_range` currently also opens a torch.profiler range."""
    return _Recording.on


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """Open an NVTX range if torch uses CUDA, and a torch.profiler range if `is_recorded()`."""
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
    torch.cuda.nvtx.range_push(name)  # not torch's own context manager, at which torch.compile breaks the graph
    try:
        yield
    finally:
        torch.cuda.nvtx.range_pop()


@contextmanager
def profiler_range(device: str) -> Iterator[None]:
    """On "cuda", run the block between cudaProfilerStart and cudaProfilerStop, for Nsight."""
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
