"""How does a `.cu` file become a loaded module? Compiled ahead by nvcc, cached by what went into it, loaded by tvm-ffi.

`build("ttt_linear/forward")` compiles `tk_kernels/ttt_linear/forward.cu` on any machine with nvcc, GPU or not;
`load("ttt_linear/forward")` needs a Hopper GPU and builds only what the cache lacks. nvcc is called here rather than by
`tvm_ffi.cpp.build`, which throws a successful compiler's output away: register counts and spills are in it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

KERNELS = ("ttt_linear/forward", "ttt_mlp/forward", "ttt_mlp/forward_32")
ARCHITECTURE = "90a"
THUNDERKITTENS_URL = "https://github.com/HazyResearch/ThunderKittens.git"
THUNDERKITTENS_COMMIT = "0b55588d2769dde0c7a9a606ffc015b0ca7a9551"
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
LIBRARY, LOG, NOTE = "kernel.so", "compiler.log", "build.json"  # the files of a build

_ANOTHER_CACHE = "set TTT_BENCH_CACHE to a folder that can be written"
_SOURCE_ROOT = Path(__file__).resolve().parent


class BuildError(RuntimeError):
    """A kernel cannot be built or loaded here; the message is one sentence that says what is missing."""


@dataclass(frozen=True)
class KernelResources:
    """What ptxas reports of one kernel: registers a thread, and bytes a thread (`shared`: static bytes a block)."""

    name: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared: int

    @property
    def spills(self) -> bool:
        return self.spill_store_bytes + self.spill_load_bytes > 0


@dataclass(frozen=True)
class Built:
    """One compiled module: `library` (.so), `log` (the compiler's output) and the resources of each kernel in it."""

    name: str
    library: Path
    log: Path
    compiled: bool  # False: it was in the cache

    @property
    def resources(self) -> list[KernelResources]:
        return parse_resources(self.log.read_text())

    @property
    def ingredients(self) -> dict[str, str | None]:
        """What it was made of, see `ingredients`; on a machine without nvcc and headers theirs are known here alone."""
        return json.loads((self.library.parent / NOTE).read_text())["ingredients"]


def cache_directory() -> Path:
    """Where builds and the ThunderKittens checkout are kept: `TTT_BENCH_CACHE`, or `~/.cache/ttt-bench`."""
    return Path(os.environ.get("TTT_BENCH_CACHE") or Path.home() / ".cache" / "ttt-bench")


def source_path(name: str) -> Path:
    """`ttt_linear/forward` -> its `.cu` file. Raises BuildError where there is none."""
    path = _SOURCE_ROOT / f"{name}.cu"
    if not path.is_file():
        raise BuildError(f"{name}: there is no {name}.cu in {_SOURCE_ROOT.name}")
    return path


def source_digest(name: str) -> str:
    """Digest of the `.cu` file and of every `.cuh` beside it or shared by all."""
    source = source_path(name)
    files = [source, *sorted(_SOURCE_ROOT.glob("*.cuh")), *sorted(source.parent.glob("*.cuh"))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def find_thunderkittens() -> Path | None:
    """The ThunderKittens checkout: `THUNDERKITTENS_ROOT`, else the clone in the cache, else None."""
    named = os.environ.get("THUNDERKITTENS_ROOT")
    roots = [Path(named)] if named else [_clone_path()]
    return next((root for root in roots if (root / "include" / "kittens.cuh").is_file()), None)


def fetch_thunderkittens() -> Path:
    """Clone ThunderKittens at the pinned commit into the cache, once. Raises BuildError where git or the net fail."""
    target = _clone_path()
    with _os_errors(f"ThunderKittens cannot be kept in {cache_directory()} ({_ANOTHER_CACHE})"):
        if (target / "include" / "kittens.cuh").is_file():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            for arguments in (
                ["init", "--quiet"],
                ["fetch", "--quiet", "--depth", "1", THUNDERKITTENS_URL, THUNDERKITTENS_COMMIT],
                ["checkout", "--quiet", "FETCH_HEAD"],
            ):
                _git(arguments, scratch)
            shutil.copytree(scratch, target, dirs_exist_ok=True)
    return target


def thunderkittens_version(root: Path | None) -> str | None:
    """The commit of a checkout, from git or from a file COMMIT beside `include`; `unknown` where neither says."""
    if root is None:
        return None
    note = root / "COMMIT"
    if note.is_file():
        return (note.read_text().split() or ["unknown"])[0]
    if shutil.which("git") is None:
        return "unknown"
    answer = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def find_nvcc() -> Path | None:
    """The nvcc of `CUDA_HOME`, else the first on the path, else None."""
    home = os.environ.get("CUDA_HOME")
    if home and (Path(home) / "bin" / "nvcc").is_file():
        return Path(home) / "bin" / "nvcc"
    found = shutil.which("nvcc")
    return Path(found) if found else None


def compiler_version(nvcc: Path | None) -> str | None:
    """`13.0, V13.0.88` and the like; None without nvcc. Raises BuildError for one that cannot be run."""
    if nvcc is None:
        return None
    with _os_errors("nvcc cannot be run"):
        answer = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"release (.+)", answer.stdout)
    return match.group(1).strip() if match else "unknown"


def ingredients(name: str, flags: tuple[str, ...] = ()) -> dict[str, str | None]:
    """All that decides the machine code. None stands for what this machine does not have (nvcc, headers)."""
    return {
        "name": name,
        "sources": source_digest(name),
        "flags": " ".join((*FLAGS, *flags)),
        "architecture": ARCHITECTURE,
        "compiler": compiler_version(find_nvcc()),
        "thunderkittens": thunderkittens_version(find_thunderkittens()),
    }


def build(name: str, flags: tuple[str, ...] = ()) -> Built:
    """Compile one kernel file, or find it compiled.

    A cached build serves when every ingredient this machine knows is equal; where nvcc or the headers are absent
    their versions are not compared, and the newest build serves, so a cache can be carried to a bare GPU machine.
    Raises BuildError.
    """
    with _os_errors(f"{name} cannot be built into {cache_directory()} ({_ANOTHER_CACHE})"):
        wanted = ingredients(name, flags)
        folder = _find_cached(wanted)
        if folder is not None:
            return Built(name, folder / LIBRARY, folder / LOG, compiled=False)
        missing = _missing_to_compile()
        if missing:
            raise BuildError(f"{name}: not in the cache, and cannot be built: {missing}")
        return _compile(wanted, flags)


def build_all() -> list[Built]:
    """Every kernel file of the package, compiled ahead. Needs nvcc and the headers, no GPU."""
    return [build(name) for name in KERNELS]


def parse_resources(log: str) -> list[KernelResources]:
    """The `ptxas -v` lines of a compiler log, one entry a kernel, names demangled where c++filt is there."""
    pattern = re.compile(
        r"Compiling entry function '(?P<name>[^']+)'.*?"
        r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
        r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
        re.DOTALL,
    )
    found = []
    for match in pattern.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        found.append(
            KernelResources(
                name=demangle(match["name"]),
                registers=int(match["registers"]),
                spill_store_bytes=int(match["stores"]),
                spill_load_bytes=int(match["loads"]),
                stack_bytes=int(match["stack"]),
                shared=int(shared.group(1)) if shared else 0,
            )
        )
    return found


def demangle(name: str) -> str:
    """A C++ symbol in words where c++filt is installed, else as it is."""
    tool = shutil.which("c++filt")
    if tool is None:
        return name
    return subprocess.run([tool, name], capture_output=True, text=True, check=False).stdout.strip() or name


def unavailable(name: str) -> str:
    """Why kernel `name` cannot run here, in one sentence; empty when it can (it may still have to be compiled)."""
    if importlib.util.find_spec("tvm_ffi") is None:
        return "apache-tvm-ffi is not installed (pip install apache-tvm-ffi)"
    gpu = _gpu_reason()
    if gpu:
        return gpu
    try:
        if _find_cached(ingredients(name)) is not None:
            return ""
    except (BuildError, OSError) as error:
        return str(error)
    missing = _missing_to_compile()
    return f"{name} is not in the cache, and cannot be built: {missing}" if missing else ""


@functools.cache
def load(name: str, flags: tuple[str, ...] = ()) -> Any:
    """The module of `name`, its launchers as attributes. Raises BuildError with one sentence where it cannot be."""
    reason = unavailable(name)
    if reason:
        raise BuildError(reason)
    import tvm_ffi

    built = build(name, flags)
    _load_driver()
    return tvm_ffi.load_module(str(built.library))


def _gpu_reason() -> str:
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA GPU"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) != (9, 0):
        found = torch.cuda.get_device_name()
        return f"the GPU is {found} (compute capability {major}.{minor}), and the kernels need a Hopper GPU (9.0)"
    return ""


def _load_driver() -> None:
    """TMA descriptors are made by `cuTensorMapEncodeTiled`, which a module leaves for the driver's library to give."""
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BuildError("libcuda.so.1, the NVIDIA driver's library, cannot be loaded") from error


@contextmanager
def _os_errors(what: str) -> Iterator[None]:
    """Raise a BuildError of `what`, and the path and cause that the operating system names, for an OSError."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BuildError(f"{what}: {where}{error.strerror or error}") from None


def _key(wanted: Mapping[str, str | None]) -> str:
    return hashlib.sha256(json.dumps(dict(wanted), sort_keys=True).encode()).hexdigest()[:16]


def _builds() -> Path:
    return cache_directory() / "kernels"


def _find_cached(wanted: Mapping[str, str | None]) -> Path | None:
    """The newest build that serves; one that lacks a file or is not what _compile writes is passed over."""
    folders = _builds().glob(f"{str(wanted['name']).replace('/', '.')}-*")
    times = {folder: _built_at(folder, wanted) for folder in folders}
    return max((folder for folder in times if times[folder]), key=times.__getitem__, default=None)


def _built_at(folder: Path, wanted: Mapping[str, str | None]) -> float:
    """When a build was made of what is wanted, in seconds since 1970; 0 where it was not, or is damaged."""
    if not ((folder / LIBRARY).is_file() and (folder / LOG).is_file()):
        return 0
    try:
        note = json.loads((folder / NOTE).read_text())
        made_of, built_at = note["ingredients"], float(note["built_at"])
        matches = all(value is None or made_of.get(field) == value for field, value in wanted.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
    return built_at if matches else 0


def _missing_to_compile() -> str:
    if importlib.util.find_spec("tvm_ffi") is None:
        return "apache-tvm-ffi is not installed (pip install apache-tvm-ffi)"
    if find_nvcc() is None:
        return "there is no nvcc on the path or in CUDA_HOME"
    if find_thunderkittens() is None:
        named = os.environ.get("THUNDERKITTENS_ROOT")
        if named:
            return f"THUNDERKITTENS_ROOT={named} has no include/kittens.cuh"
        return "there are no ThunderKittens headers (set THUNDERKITTENS_ROOT to a checkout)"
    return ""


def _compile(wanted: Mapping[str, str | None], flags: tuple[str, ...]) -> Built:
    name = str(wanted["name"])
    folder = _builds() / f"{name.replace('/', '.')}-{_key(wanted)}"
    _builds().mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=_builds(), prefix=".building-"))
    try:
        log = _run_nvcc(name, scratch / LIBRARY, flags)
        (scratch / LOG).write_text(log)
        note = {"ingredients": dict(wanted), "built_at": time.time(), "resources": _resource_dicts(log)}
        (scratch / NOTE).write_text(json.dumps(note, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        scratch.chmod(0o755)  # mkdtemp's own is private, and a cache may be shared
        scratch.rename(folder)  # a folder under its final name is whole
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Built(name, folder / LIBRARY, folder / LOG, compiled=True)


def _run_nvcc(name: str, library: Path, flags: tuple[str, ...]) -> str:
    from tvm_ffi import libinfo

    root = find_thunderkittens()
    includes = [f"{root}/include", str(_SOURCE_ROOT), libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
    command = [
        str(find_nvcc()),
        f"-gencode=arch=compute_{ARCHITECTURE},code=sm_{ARCHITECTURE}",
        *FLAGS,
        *flags,
        *(f"-I{path}" for path in includes),
        "-shared",
        str(source_path(name)),
        f"-L{Path(libinfo.find_libtvm_ffi()).parent}",
        "-ltvm_ffi",
        "-o",
        str(library),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    log = " ".join(command) + "\n" + answer.stdout + answer.stderr
    if answer.returncode != 0:
        failed = _builds() / f"{name.replace('/', '.')}.failed.log"
        failed.write_text(log)
        first = next((line for line in log.splitlines()[1:] if "error" in line.lower()), "nvcc gave no error line")
        raise BuildError(f"{name}: nvcc failed: {first.strip()} (all of it: {failed})")
    return log


def _resource_dicts(log: str) -> list[dict[str, Any]]:
    return [asdict(resources) for resources in parse_resources(log)]


def _clone_path() -> Path:
    return cache_directory() / f"ThunderKittens-{THUNDERKITTENS_COMMIT[:12]}"


def _git(arguments: list[str], folder: str) -> None:
    if shutil.which("git") is None:
        raise BuildError("git is not installed, so ThunderKittens cannot be fetched (set THUNDERKITTENS_ROOT)")
    answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"ThunderKittens could not be fetched from {THUNDERKITTENS_URL}: {last}")
