"""Simulate a GPU on the CPU: Triton launches call the test's own function instead of running the kernel."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from tk_kernels.edges import few_rows
from tk_kernels.ttt_mlp import forward as mlp

SMS = 132
_run = JITFunction.run


def look_like_gpu(capability: int, shared_bytes: int, launched: Callable[..., None]) -> None:
    """Pretend that this process has a GPU; for its remaining life, no kernel runs.

    capability: 90 stands for compute capability 9.0. shared_bytes: bytes of shared memory per block.
    launched: called with the kernel and its arguments instead of each launch.
    """
    torch.Tensor.is_cuda = property(lambda x: True)
    torch.cuda.is_available = lambda: True
    torch.cuda.device = lambda device: nullcontext()
    torch.cuda.get_device_capability = lambda *device: divmod(capability, 10)
    torch.cuda.get_device_properties = lambda *device: SimpleNamespace(multi_processor_count=SMS)
    few_rows.shared_bytes = mlp.common.shared_bytes = mlp.shared_bytes = lambda device: shared_bytes
    target = GPUTarget("cuda", capability, 32)
    active = SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0)
    active.get_current_stream = lambda device: 0
    driver.set_active(active)
    JITFunction.run = lambda kernel, *arguments, grid, warmup, **named: launched(kernel, *arguments, **named)


def compiled(kernel: Any, *arguments: Any, **named: Any) -> Any:
    return _run(kernel, *arguments, grid=(1,), warmup=True, **named)
