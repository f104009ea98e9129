"""Find nvcc, run it on one .cu file, and read registers and spills from its output.

nvcc is called directly, because `tvm_ffi.cpp.build` discards the output of a successful compilation, which holds the
register counts and spills.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tk_kernels.build.errors import BuildError, os_errors
from tk_kernels.build.thunderkittens import find_thunderkittens

ARCHITECTURE = "90a"
DEFAULT_NVCC = Path("/usr/local/cuda/bin/nvcc")  # the CUDA toolkit's default, often not in PATH
FLAGS = (
    "-std=c++20",
    "-O3",
    "-DNDEBUG",
    "-DKITTENS_HOPPER",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "-Xcompiler=-fPIC",
    "-Xptxas=-v",
    "-Xptxas=--warn-on-spills",
    "-diag-suppress=20012,20013,20014,20015",  # host/device notes about ThunderKittens' defaulted functions
)


@dataclass(frozen=True)
class KernelResources:
    """Registers and bytes of spill stores and loads of one kernel, per thread, from ptxas."""

    name: str
    registers: int
    spilled_bytes: int


def find_nvcc() -> Path | None:
    """Path of nvcc: in `CUDA_HOME`, else in PATH, else `DEFAULT_NVCC`, else None."""
    home = os.environ.get("CUDA_HOME")
    if home and (Path(home) / "bin" / "nvcc").is_file():
        return Path(home) / "bin" / "nvcc"
    found = shutil.which("nvcc")
    if found:
        return Path(found)
    return DEFAULT_NVCC if DEFAULT_NVCC.is_file() else None


def compiler_version(nvcc: Path | None) -> str | None:
    """Version of nvcc, `13.0, V13.0.88`; None without nvcc; BuildError if it does not run."""
    if nvcc is None:
        return None
    with os_errors("nvcc cannot be run"):
        answer = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, errors="replace", check=False)
    match = re.search(r"release (.+)", answer.stdout)
    return match.group(1).strip() if match else "unknown"


def run_nvcc(source: Path, include: Path, library: Path) -> tuple[int, str]:
    """Compile `source` with the headers in `include` into `library`; return (status, log)."""
    from tvm_ffi import libinfo

    root = find_thunderkittens()
    includes = [f"{root}/include", str(include), libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
    command = [
        str(find_nvcc()),
        f"-gencode=arch=compute_{ARCHITECTURE},code=sm_{ARCHITECTURE}",
        *FLAGS,
        *(f"-I{path}" for path in includes),
        "-shared",
        str(source),
        f"-L{Path(libinfo.find_libtvm_ffi()).parent}",
        "-ltvm_ffi",
        "-o",
        str(library),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return answer.returncode, " ".join(command) + "\n" + answer.stdout + answer.stderr


def compile_error(name: str, log: str, kept_in: Path) -> BuildError:
    """Return the error of a failed nvcc: the first error line of `log`, and its file `kept_in`."""
    first = next((line for line in log.splitlines()[1:] if "error" in line.lower()), "nvcc gave no error line")
    return BuildError(f"{name}: nvcc failed: {first.strip()} (full output: {kept_in})")


def parse_resources(log: str) -> list[KernelResources]:
    """Return the resources of each kernel, by demangled name, from `ptxas -v` lines of a log."""
    pattern = re.compile(
        r"Compiling entry function '(?P<name>[^']+)'.*?"
        r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
        re.DOTALL,
    )
    return [
        KernelResources(demangle(found["name"]), int(found["registers"]), int(found["stores"]) + int(found["loads"]))
        for found in pattern.finditer(log)
    ]


def demangle(name: str) -> str:
    """Return the C++ symbol as c++filt demangles it, or unchanged without c++filt."""
    tool = shutil.which("c++filt")
    if tool is None:
        return name
    return (
        subprocess.run([tool, name], capture_output=True, text=True, errors="replace", check=False).stdout.strip()
        or name
    )
