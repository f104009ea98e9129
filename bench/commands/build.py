"""`ttt-bench build`: compile the CUDA kernels ahead of time."""

import os
import re

from bench.errors import UserError
from bench.terminal import print_rows
from tk_kernels import build
from tk_kernels.thunderkittens import fetch_thunderkittens, find_thunderkittens


def build_kernels() -> None:
    """Compile CUDA kernels that are not cached; print the registers and spills of all kernels."""
    try:
        if build.find_nvcc() and find_thunderkittens() is None and not os.environ.get("THUNDERKITTENS_ROOT"):
            fetch_thunderkittens()
        modules = [build.build(name) for name in build.KERNELS]
    except build.BuildError as error:
        raise UserError(str(error)) from None
    rows = []
    for module in modules:
        source = "nvcc" if module.compiled else "cache"
        for kernel in module.resources:
            name = kernel.name.removeprefix("void ").replace("(anonymous namespace)::", "").partition("(")[0]
            name = re.sub(r"\w+::", "", name).replace("> >", ">>").strip()
            rows.append((module.name, name, str(kernel.registers), str(kernel.spilled_bytes), source))
    print_rows(("module", "kernel", "registers", "spilled bytes", "from"), rows)
