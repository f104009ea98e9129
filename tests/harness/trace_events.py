"""The events of a small trace, as PyTorch's profiler writes them."""

from typing import Any


def event(category: str, name: str, start: float, duration: float, **arguments: Any) -> dict[str, Any]:
    thread = arguments.pop("tid", 1)
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": thread, "args": arguments}


GPU_TRACE = [
    event("user_annotation", "forward", 0, 100),
    event("user_annotation", "layer 0", 10, 20),
    event("cpu_op", "aten::mm", 11, 5),
    event("cuda_runtime", "cudaLaunchKernel", 12, 1, correlation=1),
    event("cuda_driver", "cuLaunchKernelEx", 40, 1, correlation=2),
    event("cuda_runtime", "cudaMemcpyAsync", 50, 1, correlation=3, tid=2),
    event("kernel", "gemm", 200, 10, correlation=1, **{"registers per thread": 168, "shared memory": 4096}),
    event("kernel", "_dual", 215, 20, correlation=2),
    event("gpu_memcpy", "Memcpy DtoD", 230, 10, correlation=3),
    {"ph": "M", "name": "process_name", "args": {}},
]
