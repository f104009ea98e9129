"""Find ThunderKittens, whose headers the kernels include, or clone it at the pinned commit."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tk_kernels.build.errors import ANOTHER_CACHE, BuildError, os_errors

THUNDERKITTENS_URL = "https://github.com/HazyResearch/ThunderKittens.git"
THUNDERKITTENS_COMMIT = "0b55588d2769dde0c7a9a606ffc015b0ca7a9551"
_ASIDE = ".fetching-"  # prefix of an incomplete clone


def cache_directory() -> Path:
    """The cache folder: `TTT_BENCH_CACHE`, or `~/.cache/ttt-bench`."""
    return Path(os.environ.get("TTT_BENCH_CACHE") or Path.home() / ".cache" / "ttt-bench")


def find_thunderkittens() -> Path | None:
    """Path of ThunderKittens, or None: THUNDERKITTENS_ROOT if set, otherwise the clone."""
    named = os.environ.get("THUNDERKITTENS_ROOT")
    root = Path(named) if named else _clone_path()
    return root if (root / "include" / "kittens.cuh").is_file() else None


def fetch_thunderkittens() -> Path:
    """Return the cache's ThunderKittens at the pinned commit, cloned if missing or changed.

    Raises BuildError if git or the network fails.
    """
    target = _clone_path()
    with os_errors(f"ThunderKittens cannot be kept in {cache_directory()} ({ANOTHER_CACHE})"):
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target.parent / ".fetch.lock"):
            if thunderkittens_version(target) == THUNDERKITTENS_COMMIT:
                return target
            with named_when_whole(target, _ASIDE) as aside:
                for arguments in (
                    ["init", "--quiet"],
                    ["fetch", "--quiet", "--depth", "1", THUNDERKITTENS_URL, THUNDERKITTENS_COMMIT],
                    ["checkout", "--quiet", "FETCH_HEAD"],
                ):
                    _git(arguments, aside)
    return target


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process at a time run the block, by a lock on `path` if the file system has locks."""
    with open(path, "w") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def named_when_whole(target: Path, prefix: str) -> Iterator[Path]:
    """Yield a folder to fill; it replaces `target` if the block succeeds, or is removed.

    Call this inside `alone`: other folders whose names begin with `prefix` count as leftovers and are removed.
    """
    for killed in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(killed, ignore_errors=True)
    aside = target.parent / f"{prefix}{secrets.token_hex(4)}"
    aside.mkdir()
    try:
        yield aside
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def thunderkittens_version(root: Path | None) -> str | None:
    """Return the commit of a ThunderKittens checkout, from its file COMMIT or git; None without one.

    If `include` was changed or the commit is unknown, the version ends in a digest of `include`.
    """
    if root is None or not root.is_dir():
        return None
    note = root / "COMMIT"
    if note.is_file() and note.read_text().split():
        return note.read_text().split()[0]
    first, *rest = _git_status(root, "include") or [""]
    commit = first.removeprefix("# branch.oid ")
    if commit and all(line.startswith("#") for line in rest):
        return commit
    digest = hashlib.sha256()
    for file in sorted(path for path in (root / "include").rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return f"{commit or 'unknown'}-{digest.hexdigest()[:12]}"


def _git_status(root: Path, folder: str) -> list[str]:
    """Return lines of `git status`, [] if it fails; a killed git must leave no locks behind."""
    if not (root / ".git").exists():  # git would report the commit of a checkout around root
        return []
    command = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain=v2", "--branch", "--", folder]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL, env=_without_repository()
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.splitlines() if answer.returncode == 0 else []


def _without_repository() -> dict[str, str]:
    """Return this process's environment without variables that a git hook sets."""
    return {name: value for name, value in os.environ.items() if not re.match("GIT_(?!CONFIG)", name)}


def _clone_path() -> Path:
    return cache_directory() / f"ThunderKittens-{THUNDERKITTENS_COMMIT[:12]}"


def _git(arguments: list[str], folder: Path) -> None:
    if shutil.which("git") is None:
        raise BuildError("git is not installed, so ThunderKittens cannot be fetched (set THUNDERKITTENS_ROOT)")
    answer = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False, env=_without_repository()
    )
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"ThunderKittens could not be fetched from {THUNDERKITTENS_URL}: {last}")
