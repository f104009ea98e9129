"""Compile a .cu file with nvcc, cache the library, and load it with tvm-ffi.

`build("ttt_linear/forward_sm90")` compiles `tk_kernels/ttt_linear/forward_sm90.cu` on any machine with nvcc, with or
without a GPU. `load("ttt_linear/forward_sm90")` needs a Hopper GPU. Both compile a kernel only if the cache lacks it.
A machine without nvcc or ThunderKittens can use another machine's cache.
"""

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tk_kernels.thunderkittens import (
    BuildError,
    cache_directory,
    cache_errors,
    find_thunderkittens,
    locked,
    replaced_folder,
    thunderkittens_version,
)

# `unavailable` returns reasons with these prefixes if no installation can help
NO_GPU, OTHER_GPU = "there is no CUDA GPU", "the GPU is"
PORTABLE = "portable"  # this value of TTT_BENCH_ARCH disables the Hopper kernels
NO_TVM_FFI = "apache-tvm-ffi is not installed (pip install apache-tvm-ffi)"
SOURCE_ROOT = Path(__file__).resolve().parent
KERNELS = tuple(sorted(path.relative_to(SOURCE_ROOT).with_suffix("").as_posix() for path in SOURCE_ROOT.rglob("*.cu")))
LIBRARY, LOG, MANIFEST = "kernel.so", "compiler.log", "build.json"  # the files of a build
SIZE = "library_bytes"  # a key of the manifest
DEFAULT_NVCC = Path("/usr/local/cuda/bin/nvcc")  # the CUDA toolkit's default, often not in PATH
NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")  # environment variables with flags that nvcc reads
ARCHITECTURE = "90a"
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
    name: str
    registers: int  # per thread
    spilled_bytes: int  # per thread, stores plus loads


@dataclass(frozen=True)
class Built:
    """A compiled .cu file. Its cache `folder` holds the library, compiler log and build inputs."""

    name: str
    folder: Path
    compiled: bool  # whether this call of `build` compiled it; False: it was in the cache

    @property
    def build_inputs(self) -> dict[str, str | None]:
        """The build's inputs, such as nvcc's version, and the library's size, from build.json in the cache folder."""
        return json.loads((self.folder / MANIFEST).read_text())

    @property
    def resources(self) -> list[KernelResources]:
        """Each kernel's registers and spilled bytes, from the compiler log."""
        log = (self.folder / LOG).read_text()
        if shutil.which("c++filt"):
            log = subprocess.run(["c++filt"], input=log, capture_output=True, text=True, check=True).stdout
        pattern = re.compile(
            r"Compiling entry function '(?P<name>.+?)' for .*?"
            r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
            re.DOTALL,
        )
        return [
            KernelResources(found["name"], int(found["registers"]), int(found["stores"]) + int(found["loads"]))
            for found in pattern.finditer(log)
        ]


def build(name: str) -> Built:
    """Return kernel `name`, compiled if the cache lacks it.

    Raises BuildError if the kernel cannot be compiled here.
    """
    with cache_errors(f"{name} cannot be built"):
        wanted = build_inputs(name)
        cached = _cached(name, wanted)
        if cached is not None:
            return cached
        missing = missing_requirement()
        if missing:
            raise BuildError(f"{name}: not in the cache, and cannot be built: {missing}")
        folder = _folder(name, wanted)
        with locked(folder.with_name(f".{folder.name}.lock")):  # another process may have compiled it meanwhile
            return _cached(name, wanted) or _compiled(name, wanted)


def unavailable(name: str) -> str:
    """Return why this machine cannot run kernel `name`, or "". Compiles nothing."""
    tvm_ffi = "" if importlib.util.find_spec("tvm_ffi") else NO_TVM_FFI
    if reason := hidden() or tvm_ffi or unsupported_gpu(lambda found: found == (9, 0), "a Hopper GPU (9.0)"):
        return reason
    try:
        if _cached(name, build_inputs(name)) is not None:
            return ""
    except (BuildError, OSError, PackageNotFoundError) as error:
        return str(error)
    missing = missing_requirement()
    return f"{name} is not in the cache, and cannot be built: {missing}" if missing else ""


def unavailable_on(device: Any, name: str) -> str:
    """Return `unavailable(name)` for a device (-1: the current GPU), cached, except for TTT_BENCH_ARCH."""
    return hidden() or _unavailable_on(device, name)


@functools.cache
def _unavailable_on(device: Any, name: str) -> str:
    import torch

    with torch.cuda.device(device):
        return unavailable(name)


@functools.cache
def load(name: str) -> Any:
    """Return a kernel's tvm-ffi module, compiled if needed. Raises BuildError if it cannot run here."""
    reason = unavailable(name)
    if reason:
        raise BuildError(reason)
    import tvm_ffi

    built = build(name)
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)  # kernel modules call it for TMA descriptors
    except OSError as error:
        raise BuildError("libcuda.so.1, the NVIDIA driver's library, cannot be loaded") from error
    return tvm_ffi.load_module(str(built.folder / LIBRARY))


def hidden() -> str:
    """Return why TTT_BENCH_ARCH disables the Hopper kernels, or "" if it is empty or unset."""
    arch = os.environ.get("TTT_BENCH_ARCH", "")
    if arch in ("", PORTABLE):
        return f"TTT_BENCH_ARCH={arch} disables the Hopper kernels" if arch else ""
    return f"TTT_BENCH_ARCH={arch} is unknown: unset it, or set it to {PORTABLE}"


def unsupported_gpu(is_supported: Callable[[tuple[int, int]], bool], needed: str) -> str:
    """Return an error message if there is no GPU or `is_supported` rejects the current one, else "".

    is_supported: function that checks a compute capability, such as (9, 0). needed: supported GPUs, for the message.
    """
    import torch

    if not torch.cuda.is_available():
        return NO_GPU
    major, minor = torch.cuda.get_device_capability()
    if is_supported((major, minor)):
        return ""
    found = torch.cuda.get_device_name()
    return f"{OTHER_GPU} {found} (compute capability {major}.{minor}), and the kernels need {needed}"


def missing_requirement() -> str:
    """Return the first missing requirement for compiling kernels, or ""."""
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


def find_nvcc() -> Path | None:
    """Return nvcc's path: from `CUDA_HOME`, else PATH, else `DEFAULT_NVCC`; None without nvcc."""
    home, found = os.environ.get("CUDA_HOME"), shutil.which("nvcc")
    candidates = [*([Path(home) / "bin" / "nvcc"] if home else []), *([Path(found)] if found else []), DEFAULT_NVCC]
    return next((path for path in candidates if path.is_file()), None)


def build_inputs(name: str) -> dict[str, str | None]:
    """Return the inputs of a kernel's build, such as a source digest and nvcc's version.

    A missing tool or library has the value None. Raises BuildError for an unknown kernel, or if nvcc does not run.
    """
    return {
        "name": name,
        "sources": source_digest(name),
        "flags": " ".join((*FLAGS, *filter(None, map(os.environ.get, NVCC_VARIABLES)))),
        "host": platform.machine(),
        "tvm_ffi": version("apache-tvm-ffi") if importlib.util.find_spec("tvm_ffi") else None,
        "architecture": ARCHITECTURE,
        "compiler": _compiler_version(find_nvcc()),
        "thunderkittens": thunderkittens_version(find_thunderkittens()),
    }


def source_digest(name: str) -> str:
    source = SOURCE_ROOT / f"{name}.cu"
    if not source.is_file():
        raise BuildError(f"{name}: there is no {name}.cu in {SOURCE_ROOT.name}")
    digest = hashlib.sha256()
    for file in (source, *sorted(SOURCE_ROOT.glob("forward/*.cuh")), *sorted(source.parent.glob("*.cuh"))):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _compiler_version(nvcc: Path | None) -> str | None:
    if nvcc is None:
        return None
    try:
        result = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise BuildError(f"nvcc cannot be run: {nvcc}: {error.strerror}") from None
    match = re.search(r"release (.+)", result.stdout)
    return match.group(1).strip() if match else "unknown"


def _folder(name: str, wanted: dict[str, str | None]) -> Path:
    """Return a kernel's cache folder, the same for all versions of nvcc and ThunderKittens."""
    known = [wanted[each] for each in ("sources", "flags", "host", "tvm_ffi", "architecture")]
    key = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
    return cache_directory() / "kernels" / f"{name.replace('/', '.')}-{key}"


def _cached(name: str, wanted: dict[str, str | None]) -> Built | None:
    built = Built(name, _folder(name, wanted), compiled=False)
    try:
        made, size = built.build_inputs, str((built.folder / LIBRARY).stat().st_size)
    except (OSError, ValueError):
        return None
    if made.get(SIZE, size) != size or not (built.folder / LOG).is_file():  # an interrupted copy of another cache
        return None
    others = (each for each in ("compiler", "thunderkittens") if wanted[each] not in (None, made[each]))
    return None if any(others) else built


def _compiled(name: str, wanted: dict[str, str | None]) -> Built:
    from tvm_ffi import libinfo

    built = Built(name, _folder(name, wanted), compiled=True)
    headers = (f"{find_thunderkittens()}/include", SOURCE_ROOT)
    ffi_headers = (libinfo.find_include_path(), libinfo.find_dlpack_include_path())
    with replaced_folder(built.folder) as folder:
        command = [  # tvm_ffi.cpp.build would discard nvcc's register counts and spills
            str(find_nvcc()),
            f"-gencode=arch=compute_{ARCHITECTURE},code=sm_{ARCHITECTURE}",
            *FLAGS,
            *(f"-I{path}" for path in (*headers, *ffi_headers)),
            "-shared",
            str(SOURCE_ROOT / f"{name}.cu"),
            f"-L{Path(libinfo.find_libtvm_ffi()).parent}",
            "-ltvm_ffi",
            "-o",
            str(folder / LIBRARY),
        ]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        output = result.stdout + result.stderr
        failed = built.folder.with_name(f"{name.replace('/', '.')}.failed.log")
        (failed if result.returncode else folder / LOG).write_text(" ".join(command) + "\n" + output)
        if result.returncode:
            lines = output.splitlines()
            errors = (line for line in lines if "error" in line.lower() and not line.startswith("collect2"))
            cause = next(errors, " ".join(lines[-2:]) or "no output")  # "nvcc fatal" follows its cause
            raise BuildError(f"{name}: nvcc failed: {cause.strip()} (full output: {failed})")
        size = {SIZE: str((folder / LIBRARY).stat().st_size)}
        (folder / MANIFEST).write_text(json.dumps(wanted | size, indent=1))
    return built
