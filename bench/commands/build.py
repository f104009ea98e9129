"""`ttt-bench build`: compile the CUDA kernels ahead."""

from bench.errors import UserError
from bench.terminal import print_rows


def build_kernels() -> None:
    """Compile every CUDA kernel that the cache lacks; ThunderKittens is cloned where no checkout is named."""
    from tk_kernels import build

    try:
        if build.find_nvcc() and build.find_thunderkittens() is None:
            build.fetch_thunderkittens()
        modules = build.build_all()
    except build.BuildError as error:
        raise UserError(str(error)) from None
    rows = []
    for module in modules:
        source = "nvcc" if module.compiled else "cache"
        for kernel in module.resources:
            rows.append((module.name, kernel.name, str(kernel.registers), str(kernel.spilled_bytes), source))
    print_rows(("module", "kernel", "registers", "spilled bytes", "from"), rows)
