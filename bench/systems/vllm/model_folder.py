"""Reuse one folder name for the models of successive engines, as vLLM's compile cache depends on it."""

import errno
import fcntl
import itertools
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

_NOT_OURS = (errno.ENOTDIR, errno.ELOOP, errno.EACCES)  # a file, a link, another user's folder
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


class ModelFolder:
    """An empty folder, `path`, which this process alone uses and empties at its end.

    vLLM's compile cache is keyed by the model's path, so a new name compiles everything again. Each process locks the
    first free folder of a numbered series and removes what a killed process left there. On a file system without locks
    each folder has a new name. Raises OSError if no folder can be created.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        paths = (parent / f"ttt-bench-{os.getuid()}-vllm-{number}" for number in itertools.count())
        try:
            self.path, descriptor = next((path, taken) for path in paths if (taken := _taken(path)) is not None)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            self.path = Path(tempfile.mkdtemp(prefix="ttt-bench-vllm-", dir=parent))
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
            return
        _empty(self.path)
        weakref.finalize(self, _let_go, self.path, descriptor)


def _taken(path: Path) -> int | None:
    """Lock the folder and return its descriptor; None if another process or user owns it."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in _NOT_OURS:
            return None
        raise
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except BlockingIOError:
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _let_go(path: Path, descriptor: int) -> None:
    _empty(path)
    os.close(descriptor)


def _empty(path: Path) -> None:
    for each in path.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.unlink(missing_ok=True)
