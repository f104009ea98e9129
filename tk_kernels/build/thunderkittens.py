"""Find, or clone at the pinned commit, the ThunderKittens checkout whose headers the kernels include."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tk_kernels.build.errors import ANOTHER_CACHE, BuildError, os_errors

THUNDERKITTENS_URL = "https://github.com/HazyResearch/ThunderKittens.git"
THUNDERKITTENS_COMMIT = "0b55588d2769dde0c7a9a606ffc015b0ca7a9551"


def cache_directory() -> Path:
    """Where builds and the ThunderKittens checkout are kept: `TTT_BENCH_CACHE`, or `~/.cache/ttt-bench`."""
    return Path(os.environ.get("TTT_BENCH_CACHE") or Path.home() / ".cache" / "ttt-bench")


def find_thunderkittens() -> Path | None:
    """The ThunderKittens checkout: `THUNDERKITTENS_ROOT`, else the clone in the cache, else None."""
    named = os.environ.get("THUNDERKITTENS_ROOT")
    root = Path(named) if named else _clone_path()
    return root if (root / "include" / "kittens.cuh").is_file() else None


def fetch_thunderkittens() -> Path:
    """Clone ThunderKittens at the pinned commit into the cache, once. Raises BuildError where git or the net fail."""
    target = _clone_path()
    with os_errors(f"ThunderKittens cannot be kept in {cache_directory()} ({ANOTHER_CACHE})"):
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
    """The commit of a checkout, from a file COMMIT beside `include` or from git; `unknown` where neither has it."""
    if root is None:
        return None
    note = root / "COMMIT"
    if note.is_file():
        return (note.read_text().split() or ["unknown"])[0]
    if shutil.which("git") is None:
        return "unknown"
    answer = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def _clone_path() -> Path:
    return cache_directory() / f"ThunderKittens-{THUNDERKITTENS_COMMIT[:12]}"


def _git(arguments: list[str], folder: str) -> None:
    if shutil.which("git") is None:
        raise BuildError("git is not installed, so ThunderKittens cannot be fetched (set THUNDERKITTENS_ROOT)")
    answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"ThunderKittens could not be fetched from {THUNDERKITTENS_URL}: {last}")
