"""NVTX ranges that mark the timed work for profilers, and the range of the CUDA profiler interface."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OPERATOR = "operator"  # the range of a layer's inner loop, inside of the layer's
COUNTED = 1  # the number of the layer whose kernels stand for those of all where each is counted
TIMED = "timed"  # the range around what is timed, where a profiler sees a call under its phase's ranges beside it
LEAD = "lead"  # around the runs just before that, which no profile shows; their layers have ranges too


class _Recording:
    """Whether PyTorch's profiler is to see the ranges too; off, as each costs microseconds. entered: told each name."""

    on = False
    entered: Callable[[str], object] | None = None


def layer_name(index: int) -> str:
    """The range of a layer: "layer 0" for the first."""
    return f"layer {index}"


COUNTED_LAYER = layer_name(COUNTED)


def is_layer(name: str) -> bool:
    """Whether a range is that of a layer."""
    word, _, index = name.partition(" ")
    return word == "layer" and index.isdecimal()


def range_name(phase: str) -> str:
    """What a profiler calls the work of a phase: a forward is a `prefill`, the field's word for it."""
    return "prefill" if phase == "forward" else phase


def range_names(phase: str) -> tuple[str, ...]:
    """The ranges of a phase, the outermost first: a request has those of its prompt and of its steps inside."""
    return (range_name(phase), "prefill", "generate") if phase == "request" else (range_name(phase),)


@contextmanager
def recorded(on: bool = True) -> Iterator[None]:
    """Inside of the block, `nvtx_range` is a range of PyTorch's profiler too."""
    before, _Recording.on = _Recording.on, on
    try:
        yield
    finally:
        _Recording.on = before


@contextmanager
def told(entered: Callable[[str], object]) -> Iterator[None]:
    """Inside of the block, `entered` is told the name of each `nvtx_range` before it begins."""
    before, _Recording.entered = _Recording.entered, entered
    try:
        yield
    finally:
        _Recording.entered = before


def is_recorded() -> bool:
    """Whether PyTorch's profiler is to see the ranges."""
    return _Recording.on


@contextmanager
def nvtx_range(name: str) -> Iterator[None]:
    """A push/pop range called `name`; nothing before PyTorch uses CUDA. See `recorded` for PyTorch's profiler."""
    if _Recording.entered:
        _Recording.entered(name)
    if not _Recording.on:
        with _nvtx(name):
            yield
        return
    from torch.profiler import record_function

    with _nvtx(name), record_function(name):
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
    """cudaProfilerStart to cudaProfilerStop, for profilers told to capture only that; nothing on a CPU."""
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
