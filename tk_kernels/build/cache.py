"""Cache compiled kernels by their ingredients, and find them again.

A build's ingredients are its sources, flags, GPU and host architectures, compiler, tvm-ffi and ThunderKittens commit.
A look-up ignores ingredients that the machine lacks, so a GPU machine without nvcc can use a cache made elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tk_kernels.build.compiler import (
    ARCHITECTURE,
    FLAGS,
    KernelResources,
    compile_error,
    compiler_version,
    find_nvcc,
    parse_resources,
    run_nvcc,
)
from tk_kernels.build.errors import BuildError
from tk_kernels.build.thunderkittens import (
    alone,
    cache_directory,
    find_thunderkittens,
    named_when_whole,
    thunderkittens_version,
)

LIBRARY, LOG, NOTE = "kernel.so", "compiler.log", "build.json"  # the files of a build
SOURCE_ROOT = Path(__file__).resolve().parent.parent
NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")  # environment variables with flags that nvcc reads
SHARED_HEADERS = "forward/*.cuh"  # in addition to headers in a kernel's own folder


@dataclass(frozen=True)
class Built:
    """One compiled kernel file: its library (.so), compiler log and kernels' resources."""

    name: str
    library: Path
    log: Path
    compiled: bool  # False: from the cache

    @property
    def resources(self) -> list[KernelResources]:
        return parse_resources(self.log.read_text())

    @property
    def ingredients(self) -> dict[str, str | None]:
        """The ingredients that the cache recorded at the build, perhaps on another machine."""
        return json.loads((self.library.parent / NOTE).read_text())["ingredients"]


def source_path(name: str) -> Path:
    """Return the `.cu` file of a kernel such as `ttt_linear/forward_sm90`, or raise BuildError."""
    path = SOURCE_ROOT / f"{name}.cu"
    if not path.is_file():
        raise BuildError(f"{name}: there is no {name}.cu in {SOURCE_ROOT.name}")
    return path


def source_digest(name: str) -> str:
    """Return the SHA-256 of a kernel's `.cu` file and of all headers that it can include."""
    source = source_path(name)
    files = [source, *sorted(SOURCE_ROOT.glob(SHARED_HEADERS)), *sorted(source.parent.glob("*.cuh"))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def ingredients(name: str) -> dict[str, str | None]:
    """Return the ingredients of a kernel's machine code; None for what this machine lacks.

    Raises BuildError if there is no such kernel.
    """
    return {
        "name": name,
        "sources": source_digest(name),
        "flags": " ".join((*FLAGS, *filter(None, map(os.environ.get, NVCC_VARIABLES)))),
        "host": platform.machine(),
        "tvm_ffi": _tvm_ffi_version(),
        "architecture": ARCHITECTURE,
        "compiler": compiler_version(find_nvcc()),
        "thunderkittens": thunderkittens_version(find_thunderkittens()),
    }


def _tvm_ffi_version() -> str | None:
    try:
        return version("apache-tvm-ffi")
    except PackageNotFoundError:
        return None


def find_cached(wanted: Mapping[str, str | None]) -> Built | None:
    """Return the newest undamaged build that matches `wanted`; None if there is none.

    wanted: the result of `ingredients`; a value of None matches every build.
    """
    name = str(wanted["name"])
    times = {folder: _built_at(folder, wanted) for folder in _builds().glob(f"{_dotted(name)}-*")}
    folder = max((folder for folder in times if times[folder]), key=times.__getitem__, default=None)
    return Built(name, folder / LIBRARY, folder / LOG, compiled=False) if folder else None


def compile_into_cache(wanted: Mapping[str, str | None]) -> Built:
    """Compile kernel `wanted["name"]` into the cache, or wait for another process to do it.

    The folder gets its final name when the build is complete; leftovers of killed builds are removed.
    Raises BuildError if nvcc fails.
    """
    name = str(wanted["name"])
    _builds().mkdir(parents=True, exist_ok=True)
    with alone(_builds() / f".{_dotted(name)}.lock"):
        return find_cached(wanted) or _compiled(name, wanted)


def _compiled(name: str, wanted: Mapping[str, str | None]) -> Built:
    key = hashlib.sha256(json.dumps(dict(wanted), sort_keys=True).encode()).hexdigest()[:16]
    folder = _builds() / f"{_dotted(name)}-{key}"
    with named_when_whole(folder, f".{_dotted(name)}.building-") as scratch:
        status, log = run_nvcc(source_path(name), SOURCE_ROOT, scratch / LIBRARY)
        if status != 0:
            failed = _builds() / f"{_dotted(name)}.failed.log"
            failed.write_text(log)
            raise compile_error(name, log, failed)
        (scratch / LOG).write_text(log)
        note = {"ingredients": dict(wanted), "built_at": time.time()}
        (scratch / NOTE).write_text(json.dumps(note, indent=1))
    return Built(name, folder / LIBRARY, folder / LOG, compiled=True)


def _dotted(name: str) -> str:
    return name.replace("/", ".")


def _builds() -> Path:
    return cache_directory() / "kernels"


def _built_at(folder: Path, wanted: Mapping[str, str | None]) -> float:
    """Time of the build in `folder`, in Unix seconds; 0 if damaged or not as `wanted`."""
    try:
        if not ((folder / LIBRARY).stat().st_size and (folder / LOG).is_file()):  # empty after a power failure
            return 0
        note = json.loads((folder / NOTE).read_text())
        made_of, built_at = note["ingredients"], float(note["built_at"])
        matches = all(value is None or made_of.get(field) == value for field, value in wanted.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
    return built_at if matches else 0
