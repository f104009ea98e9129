"""Create vLLM's model folder, under a name that lets vLLM reuse its compilation cache."""

import fcntl
import os
import re
import shutil
import tempfile
import weakref
from itertools import count
from pathlib import Path

from harness.measure.nvml import VARIABLE as GPU_VARIABLE


class ModelFolder:
    """An empty model folder `path`, locked until this object is deleted or the process exits, and then emptied.

    vLLM caches compiled models by path, so the name depends only on user and GPU. If another engine has locked the
    folder, the name gets a number. Raises OSError if no folder can be created or locked.
    """

    def __init__(self, parent: Path | None = None) -> None:
        gpu = re.sub(r"\W", "-", os.environ.get(GPU_VARIABLE, ""))
        for number in count():
            name = f"ttt-bench-{os.getuid()}-vllm-{gpu}" + (f"-{number}" if number else "")
            self.path = (parent or Path(tempfile.gettempdir())) / name
            self.path.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self.path, os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # another engine of this GPU has it
                os.close(descriptor)
        _empty(self.path)
        weakref.finalize(self, _release, self.path, descriptor)


def _release(path: Path, descriptor: int) -> None:
    _empty(path)
    os.close(descriptor)


def _empty(path: Path) -> None:
    for each in path.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)
