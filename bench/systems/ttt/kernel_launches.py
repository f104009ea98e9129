"""List a callable's kernels and their SM resources, from a captured CUDA graph.

The graph gives each kernel's grid and dynamic shared memory, the driver its registers. Unlike a profiler, this does not
slow down later timings in the same process.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from tk_kernels.build import demangle


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel launch in a captured CUDA graph: the kernel's name, its grid and its resources.

    registers, local_bytes (spills and stack): per thread. shared_bytes (static and dynamic): per block.
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


def kernel_launches(run: Callable[[], object]) -> list[KernelLaunch]:
    """Return one call's kernel launches, unordered; CUDA graphs must be able to capture it.

    Raises RuntimeError on CUDA errors.
    """
    run()  # compile and load outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        run()
    return [launch for node in _nodes(graph.raw_cuda_graph()) if (launch := _launch_of(node))]


def metrics_of(found: Iterable[KernelLaunch]) -> dict[str, float | None]:
    """Return the metrics registers, spilled_bytes and shared_bytes, maxima over launches."""
    found = list(found)
    return {
        "registers": max(launch.registers for launch in found),
        "spilled_bytes": max(launch.local_bytes for launch in found),
        "shared_bytes": max(launch.shared_bytes for launch in found),
    }


def settings_of(found: Iterable[KernelLaunch]) -> dict[str, str]:
    """Return the setting `kernels`, which describes each distinct launch."""
    return {"kernels": "; ".join(dict.fromkeys(map(str, found)))}


def _driver() -> Any:
    """Return the module cuda.bindings.driver, which only CUDA builds of torch install."""
    from cuda.bindings import driver

    return driver


def _call(name: str, *arguments: Any) -> Any:
    """Call the driver function `name` and return its results without the status.

    Raises RuntimeError for an error status.
    """
    status, *values = getattr(_driver(), name)(*arguments)
    if int(status):
        raise RuntimeError(f"{name} failed with {status.name}")
    return values[0] if len(values) == 1 else values


def _nodes(graph: int) -> list[Any]:
    handle = _driver().CUgraph(graph)
    _, count = _call("cuGraphGetNodes", handle)
    return _call("cuGraphGetNodes", handle, count)[0]


def _launch_of(node: Any) -> KernelLaunch | None:
    """Return the kernel launch of a graph node; None for a copy, a fill or an event."""
    driver = _driver()
    if _call("cuGraphNodeGetType", node) != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
        return None
    launched = _call("cuGraphKernelNodeGetParams", node)
    # The binding's null handle is truthy, so compare its value.
    function = launched.func if int(launched.func) else _call("cuKernelGetFunction", launched.kern)
    attribute = driver.CUfunction_attribute
    return KernelLaunch(
        name=_named(int(function)),
        registers=_call("cuFuncGetAttribute", attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function),
        local_bytes=_call("cuFuncGetAttribute", attribute.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function),
        shared_bytes=_call("cuFuncGetAttribute", attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)
        + launched.sharedMemBytes,
        blocks=launched.gridDimX * launched.gridDimY * launched.gridDimZ,
        threads=launched.blockDimX * launched.blockDimY * launched.blockDimZ,
    )


@functools.cache
def _named(function: int) -> str:
    """Return a function's demangled name, cached because graphs launch it many times."""
    return demangle(_call("cuFuncGetName", _driver().CUfunction(function)).decode())
