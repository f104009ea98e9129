"""Describe the machine: GPU, CPU, packages, environment variables and commit.

The description is published, so it has no host names, user names or paths.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.measure.nvml import open_gpu
from harness.schema.reason import clipped

# Recorded in addition to an adapter's packages; cuBLAS has one package per major release of CUDA.
PACKAGES = ("torch", "triton", "numpy", "nvidia-ml-py", "nvidia-cublas", "nvidia-cublas-cu12")
SOURCES = (".py", ".cu", ".cuh", ".h")
_WITHOUT_RESULTS = ":(exclude)reports/results"
COMMIT_VARIABLE = "TTT_BENCH_COMMIT"
ROOT = Path(__file__).resolve().parents[2]  # the checkout, or the folder of installed packages
DIRTY = "-dirty"  # suffix of a commit with uncommitted changes, as in git describe

_READINGS = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w", "throttle_reasons", "load_1m")

# Child processes do not inherit variables that redirect git and Slurm commands or override a batch script.
# They do inherit GIT_CONFIG_*, which holds a container's `safe.directory`.
_FOREIGN = re.compile(r"GIT_(?!CONFIG)|SQUEUE_|SBATCH_|SCANCEL_|SINFO_")
# NVML numbers GPUs by bus; CUDA numbers them by speed without this variable.
DEVICE_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_CHANGES_SPEED = re.compile(
    r"ATEN_CPU_CAPABILITY|LD_PRELOAD|TTT_BENCH_(ARCH|TUNING)"
    r"|(ONEDNN|DNNL|OMP|GOMP|KMP|MKL|OPENBLAS|CUDA|CUBLAS|TRITON|NVIDIA|PYTORCH|TORCH|VLLM|NCCL|MALLOC)_\w+"
)
_PRIVATE = re.compile(r"\w*_(KEY|TOKEN|DIR|HOME|PATH|SECRET|PASSWORD|IP|HOST|URL)|\w*VISIBLE_DEVICES|CUDA_DEVICE_ORDER")
# Descriptions of a container's image, and a random buffer name of vLLM.
_IRRELEVANT = re.compile(r"NVIDIA_(REQUIRE_\w+|PRODUCT_NAME|DRIVER_CAPABILITIES)|\w+_VERSION|VLLM_\w+_BUFFER_NAME")
_LONGEST = 200


def child_environment(added: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment variables for a child process: this process's and `added`.

    Inherited variables that redirect git or Slurm are removed. CUDA_DEVICE_ORDER is set to number GPUs as NVML does.
    """
    inherited = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    return {**inherited, **DEVICE_ORDER, **(added or {})}


def recorded_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return variables that can change speed and whose names suggest no secret or path.

    Values that are paths become "...", and long values are truncated.
    """
    chosen = {name: value for name, value in sorted(environment.items()) if _CHANGES_SPEED.fullmatch(name)}
    return {
        name: "..." if re.search(r"[/\\]", value) else clipped(value, _LONGEST)
        for name, value in chosen.items()
        if not _PRIVATE.fullmatch(name) and not _IRRELEVANT.fullmatch(name)
    }


def snapshot(device_kind: str = "", visible: str | None = None) -> dict[str, Any]:
    """Return a description of the machine: hardware, current state and software versions.

    device_kind: "cuda", "cpu", or "" to detect it.
    visible: the GPU to describe, or a list with it first, as in CUDA_VISIBLE_DEVICES; None for this process's GPU.
    Keys of the result:
        device: name of the GPU or CPU. device_kind: "cuda" or "cpu".
        gpu: `Gpu.constants` and `Gpu.readings`; None without a GPU and for device_kind "cpu".
        cpu: model, cores that this process may use, torch's threads if torch is imported, load average load_1m.
        software: {name: version}. variables: the environment variables that can change speed.
        commit: "" if unknown. dirty: whether files differ from the commit, None if unknown.
    """
    gpu = None if device_kind == "cpu" else open_gpu(visible)
    kind = device_kind or ("cpu" if gpu is None else "cuda")
    gpu_facts = None if gpu is None else gpu.constants() | gpu.readings()
    commit, dirty = commit_and_dirty()
    count_threads = getattr(sys.modules.get("torch"), "get_num_threads", None)
    threads = {"threads": count_threads()} if count_threads else {}
    return {
        "device": cpu_model() if kind == "cpu" else (gpu_facts or {}).get("name", ""),
        "device_kind": kind,
        "gpu": gpu_facts,
        "cpu": {"model": cpu_model(), "cores": len(os.sched_getaffinity(0)), **threads, "load_1m": os.getloadavg()[0]},
        "software": software(),
        "variables": recorded_variables(),
        "commit": commit,
        "dirty": dirty,
    }


def around(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Merge snapshots from before and after a case into one.

    All values are those of `after`, except readings such as clocks, temperature and load. "gpu" and "cpu" store these
    readings of both snapshots under the keys "before" and "after".
    """
    return after | {part: _paired(before.get(part) or {}, after.get(part)) for part in ("gpu", "cpu")}


def device_id_of(environment: Mapping[str, Any]) -> str:
    """Return the GPU's device_id (hash of its UUID) from a snapshot or record; "" if unknown."""
    return str((environment.get("gpu") or {}).get("device_id") or "")


def _paired(before: dict[str, Any], after: dict[str, Any] | None) -> dict[str, Any] | None:
    if not after:
        return after
    constant = {name: value for name, value in after.items() if name not in _READINGS}
    parts = {"before": before, "after": after}
    readings = {when: {name: part[name] for name in _READINGS if name in part} for when, part in parts.items()}
    return constant | readings


def software() -> dict[str, str]:
    """Return {name: version} of Python, the OS kernel, packages and, if torch is imported, CUDA."""
    cuda = getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None)
    kernel = re.match(r"[\d.]*\d", platform.release())  # a suffix may be somebody's name
    system = {platform.system().lower(): kernel[0]} if kernel else {}
    return {"python": platform.python_version(), **system, **({"cuda": cuda} if cuda else {}), **versions_of(PACKAGES)}


@lru_cache(maxsize=8)
def versions_of(packages: tuple[str, ...]) -> dict[str, str]:
    """Return the packages' installed versions by name, without packages that are not installed."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def against_lock(versions: Mapping[str, Any], locked: Mapping[str, str]) -> str:
    """Return differences from the lock file, such as "torch 2.11.0 (lock: 2.14.0)".

    versions: {package: installed version}. Local version labels are ignored: 2.14.0+cu130 counts as 2.14.0.
    locked: {package: version in the lock file}.
    Return "as locked" if no version differs, and "" if no package is in both.
    """
    both = [(name, str(version), locked[name]) for name, version in versions.items() if name in locked]
    differing = [f"{name} {version} (lock: {pin})" for name, version, pin in both if version.partition("+")[0] != pin]
    return ", ".join(differing) or ("as locked" if both else "")


@lru_cache(maxsize=1)
def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name") and ":" in line]
    return models[0] if models else platform.processor() or platform.machine()


@lru_cache(maxsize=8)
def commit_and_dirty(root: Path | None = None) -> tuple[str, bool | None]:
    """Return (commit, dirty) of the checkout `root`, by default the one that contains this file.

    dirty: whether `uncommitted` lists any file; None if unknown.
    If git gives no commit, return the pair in the variable TTT_BENCH_COMMIT, which a run sets for its workers.
    Return ("", None) if this variable is not set either.
    """
    root = root or ROOT
    commit = run_git(root, "rev-parse", "HEAD")[0] if (root / ".git").exists() else ""
    if commit:
        changed = uncommitted(root)
        return commit, None if changed is None else bool(changed)
    given = os.environ.get(COMMIT_VARIABLE, "")
    commit, dirty = json.loads(given) if given.startswith("[") else ("", None)
    return commit, dirty


def git_error() -> str:
    """Return git's error on reading this checkout's commit; "" without an error or without a checkout."""
    return run_git(ROOT, "rev-parse", "HEAD")[1] if (ROOT / ".git").exists() else ""


def uncommitted(root: Path) -> list[str] | None:
    """List changed files and untracked source files outside reports/results; None if git fails."""
    status = ("status", "--porcelain", "--untracked-files=all", "--", ".", _WITHOUT_RESULTS)
    changes, error = run_git(root, *status)
    if error:
        return None
    lines = changes.splitlines()
    return [line[3:] for line in lines if not line.startswith("??") or line.rstrip('"').endswith(SOURCES)]


def run_git(root: Path, *arguments: str, timeout_s: float | None = 20) -> tuple[str, str]:
    """Run git in `root`; return (stdout, "") on success, otherwise ("", error message)."""
    # Without locks: a killed `git status` would leave the repository locked.
    output, failure = output_of(["git", "--no-optional-locks", "-C", str(root), *arguments], timeout_s)
    return output.rstrip(), " ".join(failure.split())


def output_of(command: Sequence[str], timeout_s: float | None = 60, **env: str) -> tuple[str, str]:
    """Run a program without input; return (stdout, ""), or ("", reason) if it fails.

    reason: the output of the failed program; a sentence if it printed nothing, did not start or did not exit in time.
    env: environment variables to add.
    """
    options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(command, timeout=timeout_s, env=child_environment(env), **options)
    except FileNotFoundError:
        return "", f"{command[0]} is not installed on this machine"
    except subprocess.TimeoutExpired:
        return "", f"{command[0]} did not exit within {timeout_s:g} s"
    except OSError as error:
        return "", f"{command[0]} could not be started: {error.strerror}"
    if done.returncode:
        return "", (done.stderr + done.stdout).strip() or f"{command[0]} exited with status {done.returncode}"
    return done.stdout, ""
