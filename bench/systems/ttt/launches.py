"""The kernels that a callable launches, and what each takes of a processor, read from a CUDA graph of it.

A graph names every kernel with its grid and its dynamic shared memory, and the driver knows what was compiled: no
profiler slows the process in which the same kernels are timed afterwards.
"""

import ctypes
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tk_kernels.build import demangle

# CUfunction_attribute and CUgraphNodeType of cuda.h.
_SHARED, _LOCAL, _REGISTERS = 1, 3, 4
_KERNEL_NODE = 0


@dataclass(frozen=True)
class Launch:
    """One kernel as it is launched.

    registers and local_bytes (spills and stack) are a thread's, shared_bytes (static and dynamic) a block's.
    """

    name: str
    registers: int
    local_bytes: int
    shared_bytes: int
    blocks: int
    threads: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.blocks} blocks of {self.threads} threads, {self.registers} registers and "
            f"{self.local_bytes} bytes of local memory a thread, {self.shared_bytes} bytes of shared memory a block"
        )


def launches(run: Callable[[], object]) -> list[Launch]:
    """Every kernel launch of one call, in no order; `run` must be capturable. Raises RuntimeError where CUDA does."""
    run()  # compiles and loads what a capture must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        run()
    return [launch for node in _nodes(graph.raw_cuda_graph()) if (launch := _launch_of(node))]


def metrics_of(found: Iterable[Launch]) -> dict[str, float | None]:
    """registers, spilled_bytes (local memory) and shared_bytes: the most that any of these kernels takes."""
    found = list(found)
    return {
        "registers": max(launch.registers for launch in found),
        "spilled_bytes": max(launch.local_bytes for launch in found),
        "shared_bytes": max(launch.shared_bytes for launch in found),
    }


def settings_of(found: Iterable[Launch]) -> dict[str, str]:
    """kernels: each distinct one in words."""
    return {"kernels": "; ".join(dict.fromkeys(map(str, found)))}


class _KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} failed with CUDA error {status}")


def _nodes(graph: int) -> list[ctypes.c_void_p]:
    count = ctypes.c_size_t()
    _call("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
    nodes = (ctypes.c_void_p * count.value)()
    _call("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
    return [ctypes.c_void_p(node) for node in nodes]


def _launch_of(node: ctypes.c_void_p) -> Launch | None:
    """The kernel of a node; None for a copy, a fill or an event."""
    kind = ctypes.c_int()
    _call("cuGraphNodeGetType", node, ctypes.byref(kind))
    if kind.value != _KERNEL_NODE:
        return None
    launched = _KernelNode()
    _call("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(launched))
    function = ctypes.c_void_p(launched.function)
    if not function:
        _call("cuKernelGetFunction", ctypes.byref(function), ctypes.c_void_p(launched.kernel))
    (x, y, z), (width, height, depth) = launched.grid, launched.block
    return Launch(
        name=_named(function.value),
        registers=_attribute(function, _REGISTERS),
        local_bytes=_attribute(function, _LOCAL),
        shared_bytes=_attribute(function, _SHARED) + launched.shared_bytes,
        blocks=x * y * z,
        threads=width * height * depth,
    )


@functools.cache
def _named(address: int | None) -> str:
    """Once for each function: a graph may hold thousands of its nodes."""
    name = ctypes.c_char_p()
    _call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(address))
    return demangle((name.value or b"").decode())


def _attribute(function: ctypes.c_void_p, attribute: int) -> int:
    value = ctypes.c_int()
    _call("cuFuncGetAttribute", ctypes.byref(value), attribute, function)
    return value.value
