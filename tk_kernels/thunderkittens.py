"""Find ThunderKittens' headers for the CUDA kernels, or clone them at the pinned commit."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

THUNDERKITTENS_URL = "https://github.com/HazyResearch/ThunderKittens.git"
THUNDERKITTENS_COMMIT = "0b55588d2769dde0c7a9a606ffc015b0ca7a9551"
THUNDERKITTENS_DIGEST = "050f727961e5"  # `thunderkittens_version` computes it for this commit's headers
# A git hook sets these variables for its own repository
HOOK_VARIABLES = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX"}
HOOK_VARIABLES |= {"GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_SHALLOW_FILE", "GIT_QUARANTINE_PATH"}
HEADER = Path("include") / "kittens.cuh"


class BuildError(RuntimeError):
    """A kernel cannot be built or loaded, or ThunderKittens cannot be fetched; the message says why."""


def cache_directory() -> Path:
    return Path(os.environ.get("TTT_BENCH_CACHE") or Path.home() / ".cache" / "ttt-bench")


def find_thunderkittens() -> Path | None:
    """Return THUNDERKITTENS_ROOT or, if unset, the cached clone; None if that folder has no headers."""
    named = os.environ.get("THUNDERKITTENS_ROOT")
    root = Path(named) if named else _clone_path()
    return root if (root / HEADER).is_file() else None


def thunderkittens_version(root: Path | None) -> str | None:
    """Return the pinned commit if root's headers match it, else their digest; None if `root` is None."""
    if root is None:
        return None
    digest = hashlib.sha256()
    for file in sorted(path for path in (root / "include").rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    found = digest.hexdigest()[:12]
    return THUNDERKITTENS_COMMIT if found == THUNDERKITTENS_DIGEST else found


def fetch_thunderkittens() -> Path:
    """Return the cached clone at the pinned commit, fetched if missing. Raises BuildError if that fails."""
    target = _clone_path()
    with cache_errors("ThunderKittens cannot be stored"), locked(target.parent / ".fetch.lock"):
        if not (target / HEADER).is_file():
            with replaced_folder(target) as folder:
                _git(folder, "init", "--quiet")
                _git(folder, "fetch", "--quiet", "--depth", "1", THUNDERKITTENS_URL, THUNDERKITTENS_COMMIT)
                _git(folder, "checkout", "--quiet", "FETCH_HEAD")
    return target


@contextmanager
def cache_errors(what: str) -> Iterator[None]:
    """Convert an OSError in the block to a BuildError whose message begins with `what`."""
    try:
        yield
    except OSError as error:
        hint = f"in {cache_directory()} (set TTT_BENCH_CACHE to a writable folder)"
        raise BuildError(f"{what} {hint}: {error.strerror or error}") from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock `path` so that one process at a time runs the block; no lock if the file system has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as lock:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `target` if the block succeeds; otherwise remove the new folder."""
    with TemporaryDirectory(prefix=".incomplete-", dir=target.parent) as parent:
        folder = Path(parent) / target.name
        folder.mkdir()
        yield folder
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def _clone_path() -> Path:
    return cache_directory() / f"ThunderKittens-{THUNDERKITTENS_COMMIT[:12]}"


def _git(folder: Path, *arguments: str) -> None:
    if shutil.which("git") is None:
        raise BuildError("git is not installed, so ThunderKittens cannot be fetched (set THUNDERKITTENS_ROOT)")
    inherited = {name: x for name, x in os.environ.items() if name not in HOOK_VARIABLES}
    command = ["git", "-c", "core.autocrlf=false", *arguments]  # other line ends would change the headers' digest
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=inherited)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise BuildError(f"ThunderKittens could not be fetched from {THUNDERKITTENS_URL}: {last}")
