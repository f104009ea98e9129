"""Describe the machine of a measurement: GPU, CPU, packages, commit; no host names, user names or paths."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.measure.nvml import open_gpu
from harness.measure.variables import child_environment, recorded_variables

# Beside those that an adapter names; cuBLAS goes by the major release of CUDA.
PACKAGES = ("torch", "triton", "numpy", "nvidia-ml-py", "nvidia-cublas", "nvidia-cublas-cu12")
SOURCES = (".py", ".cu", ".cuh", ".h")
RECORDS_APART = ":(exclude)reports/results"
COMMIT_VARIABLE = "TTT_BENCH_COMMIT"
DIRTY = "-dirty"  # after a commit: with uncommitted changes, as git describe says it
UNKNOWN = "-unknown"  # the same where git did not say whether there are any

_CONSTANT_OF_GPU = ("name", "driver", "memory_bytes", "device_id", "power_limit_w", "max_sm_clock_mhz", "ecc")
_CONSTANT = {*_CONSTANT_OF_GPU, "model", "cores", "threads"}


def snapshot(device_kind: str = "", visible: str | None = None) -> dict[str, Any]:
    """The machine and the software now.

    device_kind: "cuda" or "cpu", whichever is measured; "" is "cuda" where there is a GPU. visible: as in `open_gpu`.
    Keys: device (a name), device_kind, gpu (None without one): name, driver, memory_bytes, device_id (8 hexadecimal
    digits of its UUID's SHA-256, "" if unknown), power_limit_w, max_sm_clock_mhz, ecc (whether it is on), sm_clock_mhz,
    memory_clock_mhz, temperature_c (after a case that heat slowed down, the highest meanwhile), power_w,
    throttle_reasons; cpu: model, cores, threads (of torch, where it is loaded), load_1m; software: name -> version;
    variables: those that are set and change speed; commit ("" if unknown), dirty (None if unknown).
    """
    gpu = None if device_kind == "cpu" else open_gpu(visible)
    kind = device_kind or ("cpu" if gpu is None else "cuda")
    gpu_facts = None if gpu is None else gpu.constants() | gpu.readings()
    commit, dirty = commit_and_dirty()
    return {
        "device": cpu_model() if kind == "cpu" else (gpu_facts or {}).get("name", ""),
        "device_kind": kind,
        "gpu": gpu_facts,
        "cpu": {"model": cpu_model(), "cores": _cores(), **_threads(), "load_1m": _load()},
        "software": software(),
        "variables": recorded_variables(),
        "commit": commit,
        "dirty": dirty,
    }


def around(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """One environment of two snapshots: what changes by itself goes under gpu and cpu, "before" and "after"."""
    parts = {part: _paired(before.get(part), after.get(part)) for part in ("gpu", "cpu")}
    return after | parts


def device_id_of(environment: Mapping[str, Any]) -> str:
    """Which GPU of its model an environment names, of a stranger's file too; "" where it does not."""
    gpu = environment.get("gpu")
    return str(gpu.get("device_id") or "") if isinstance(gpu, Mapping) else ""


def _paired(before: dict[str, Any] | None, after: dict[str, Any] | None) -> dict[str, Any] | None:
    if not after:
        return after
    constant = {name: value for name, value in after.items() if name in _CONSTANT}
    return constant | {"before": _changing(before or {}), "after": _changing(after)}


def _changing(part: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name not in _CONSTANT}


def software() -> dict[str, str]:
    """The versions of Python, the kernel, CUDA (where torch is loaded) and of the packages that are installed."""
    torch = sys.modules.get("torch")
    cuda = getattr(getattr(torch, "version", None), "cuda", None)
    kernel = re.match(r"[\d.]*\d", platform.release())  # what follows may be a name that somebody gave it
    system = {platform.system().lower(): kernel[0]} if kernel else {}
    return {"python": platform.python_version(), **system, **({"cuda": cuda} if cuda else {}), **versions_of(PACKAGES)}


@lru_cache(maxsize=8)
def versions_of(packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of distributions, of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@lru_cache(maxsize=1)
def cpu_model() -> str:
    """The model of the CPU, as its maker calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name") and ":" in line]
    return models[0] if models else platform.processor() or platform.machine()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads() -> dict[str, int]:
    counted = getattr(sys.modules.get("torch"), "get_num_threads", None)
    return {"threads": counted()} if counted else {}


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


@lru_cache(maxsize=8)
def commit_and_dirty(root: Path | None = None) -> tuple[str, bool | None]:
    """(commit, whether its files differ) of a checkout, by default of the one that holds this package.

    Files that git does not know count where they are source code: a page or a table that was written there is none.
    A committed run that goes on is none either.
    Without one, what TTT_BENCH_COMMIT says: COMMIT, or COMMIT with DIRTY or UNKNOWN. ("", None) where neither is known.
    """
    root = root or _root()
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    if commit:
        changed = uncommitted(root)
        return commit, None if changed is None else bool(changed)
    said = os.environ.get(COMMIT_VARIABLE, "")
    named = said.partition("-")[0]
    return named, None if said in ("", named + UNKNOWN) else said == named + DIRTY


def refusal_of_git(root: Path | None = None) -> str:
    """Why git names no commit of a checkout, in its words; "" where it names one, or nothing was checked out."""
    root = root or _root()
    return ask_git(root, "rev-parse", "HEAD")[1] if (root / ".git").exists() else ""


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def marked_commit(commit: str, dirty: bool | None) -> str:
    """What TTT_BENCH_COMMIT says of a checkout."""
    return commit and commit + {True: DIRTY, False: "", None: UNKNOWN}[dirty]


def uncommitted(root: Path) -> list[str] | None:
    """The files of the program in a checkout that differ from its commit; None where git does not say."""
    changes = _git(root, "status", "--porcelain", "--untracked-files=all", "--", ".", RECORDS_APART)
    return None if changes is None else [line[3:] for line in changes.splitlines() if _differs(line)]


def _differs(line: str) -> bool:
    """Whether a line of `git status --porcelain` is a change of the program."""
    return not line.startswith("??") or line.rstrip('"').endswith(SOURCES)


def _git(root: Path, *arguments: str) -> str | None:
    said, refusal = ask_git(root, *arguments)
    return None if refusal else said


def ask_git(root: Path, *arguments: str, timeout_s: float | None = 20) -> tuple[str, str]:
    """(stdout, ""), or ("", why git refuses in its words) where its command fails."""
    # Without locks: a `git status` that is killed with its run would leave the repository locked.
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    except FileNotFoundError:
        return "", "git is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    if done.returncode:
        return "", " ".join(done.stderr.split()) or f"git ended with status {done.returncode}"
    return done.stdout.rstrip(), ""
