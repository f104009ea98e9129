"""Turn a .cu file into a loaded module: compile it with nvcc, cache it, load it by tvm-ffi.

`build("ttt_linear/forward_sm90")` compiles `tk_kernels/ttt_linear/forward_sm90.cu` on any machine with nvcc, GPU or
not; `load("ttt_linear/forward_sm90")` needs a Hopper GPU and compiles only what the cache lacks.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from typing import Any

from tk_kernels.build.cache import Built, compile_into_cache, find_cached, ingredients
from tk_kernels.build.compiler import DEFAULT_NVCC, find_nvcc
from tk_kernels.build.errors import ANOTHER_CACHE, BuildError, os_errors
from tk_kernels.build.thunderkittens import cache_directory, find_thunderkittens

KERNELS = (
    "ttt_linear/forward_sm90",
    "ttt_mlp/forward_sm90",
    "ttt_mlp/forward_32_sm90",
    "edges/swiglu_product_sm90",
)
# Prefixes of the reasons by `unavailable` that no installation can remove
NO_GPU, OTHER_GPU = "there is no CUDA GPU", "the GPU is"
PORTABLE = "portable"  # this value of TTT_BENCH_ARCH hides the kernels for Hopper
NO_TVM_FFI = "apache-tvm-ffi is not installed (pip install apache-tvm-ffi)"


def build(name: str) -> Built:
    """Return a kernel's build from the cache; compile it if there is none.

    Raises BuildError if it cannot be compiled here.
    """
    with os_errors(f"{name} cannot be built into {cache_directory()} ({ANOTHER_CACHE})"):
        wanted = ingredients(name)
        cached = find_cached(wanted)
        if cached is not None:
            return cached
        missing = missing_to_compile()
        if missing:
            raise BuildError(f"{name}: not in the cache, and cannot be built: {missing}")
        return compile_into_cache(wanted)


def build_all() -> list[Built]:
    """Return a build of every kernel in KERNELS; compiling them needs nvcc, but no GPU."""
    return [build(name) for name in KERNELS]


def unavailable(name: str) -> str:
    """Return why kernel `name`, compiled if needed, cannot run here, in one sentence, or ""."""
    if reason := hidden():
        return reason
    reason = NO_TVM_FFI if importlib.util.find_spec("tvm_ffi") is None else _no_hopper_gpu()
    if reason:
        return reason
    try:
        if find_cached(ingredients(name)) is not None:
            return ""
    except (BuildError, OSError) as error:
        return str(error)
    missing = missing_to_compile()
    return f"{name} is not in the cache, and cannot be built: {missing}" if missing else ""


@functools.cache
def load(name: str) -> Any:
    """Return a kernel's module, compiled if needed, or raise BuildError if unavailable."""
    reason = unavailable(name)
    if reason:
        raise BuildError(reason)
    import tvm_ffi

    built = build(name)
    _load_driver()
    return tvm_ffi.load_module(str(built.library))


def hidden() -> str:
    """Return why TTT_BENCH_ARCH hides the Hopper kernels; "" if the variable is unset."""
    arch = os.environ.get("TTT_BENCH_ARCH", "")
    if arch in ("", PORTABLE):
        return f"TTT_BENCH_ARCH={arch} hides the kernels for Hopper" if arch else ""
    return f"TTT_BENCH_ARCH={arch} is unknown: unset it, or set it to {PORTABLE}"


def missing_to_compile() -> str:
    """Return one sentence on the first missing requirement for compiling kernels, or ""."""
    if importlib.util.find_spec("tvm_ffi") is None:
        return NO_TVM_FFI
    if find_nvcc() is None:
        return f"there is no nvcc in CUDA_HOME, in PATH or at {DEFAULT_NVCC}"
    if find_thunderkittens() is None:
        named = os.environ.get("THUNDERKITTENS_ROOT")
        if named:
            return f"THUNDERKITTENS_ROOT={named} has no include/kittens.cuh"
        return "there are no ThunderKittens headers (run `ttt-bench build`, or set THUNDERKITTENS_ROOT to a checkout)"
    return ""


def _no_hopper_gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return NO_GPU
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) != (9, 0):
        found = torch.cuda.get_device_name()
        return f"{OTHER_GPU} {found} (compute capability {major}.{minor}), and the kernels need a Hopper GPU (9.0)"
    return ""


def _load_driver() -> None:
    """Load libcuda.so.1, which kernel modules call for TMA descriptors, or raise BuildError."""
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BuildError("libcuda.so.1, the NVIDIA driver's library, cannot be loaded") from error
