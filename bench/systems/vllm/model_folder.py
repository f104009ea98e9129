"""Give successive engines' models one folder name, on which vLLM's cache depends."""

import fcntl
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path

from harness.measure.nvml import VARIABLE as GPU_VARIABLE


class ModelFolder:
    """An empty folder, `path`, which this process alone uses and empties when it ends.

    vLLM's compile cache is keyed by the model's path, so each GPU has one name; another serves only if that is locked.
    Raises OSError if no folder can be created.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        gpu = re.sub(r"\W", "-", os.environ.get(GPU_VARIABLE, ""))
        self.path = parent / f"ttt-bench-{os.getuid()}-vllm-{gpu}"
        try:
            descriptor = _locked(self.path)
        except OSError:
            self.path = Path(tempfile.mkdtemp(prefix="ttt-bench-vllm-", dir=parent))
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
            return
        _empty(self.path)
        weakref.finalize(self, _let_go, self.path, descriptor)


def _locked(path: Path) -> int:
    path.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another engine of this GPU has it, or the file system has no locks
        os.close(descriptor)
        raise
    return descriptor


def _let_go(path: Path, descriptor: int) -> None:
    _empty(path)
    os.close(descriptor)


def _empty(path: Path) -> None:
    for each in path.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)
