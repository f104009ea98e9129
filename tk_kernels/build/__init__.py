"""Compile, cache and load CUDA kernels; compile many Triton kernels at once."""

from tk_kernels.build.cache import Built, ingredients, source_digest
from tk_kernels.build.compiler import KernelResources, demangle, find_nvcc, parse_resources
from tk_kernels.build.errors import BuildError
from tk_kernels.build.modules import KERNELS, NO_GPU, OTHER_GPU, build, build_all, hidden, load, unavailable
from tk_kernels.build.thunderkittens import fetch_thunderkittens, find_thunderkittens, thunderkittens_version

__all__ = [
    "KERNELS",
    "NO_GPU",
    "OTHER_GPU",
    "BuildError",
    "Built",
    "KernelResources",
    "build",
    "build_all",
    "demangle",
    "fetch_thunderkittens",
    "find_nvcc",
    "find_thunderkittens",
    "hidden",
    "ingredients",
    "load",
    "parse_resources",
    "source_digest",
    "thunderkittens_version",
    "unavailable",
]
