"""Write files whole or not at all; read regular files; put an OSError in a sentence."""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POINTER = b"version https://git-lfs.github.com/spec/"


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file; OSError for a Git LFS pointer, a folder, a pipe or a device."""
    # O_NONBLOCK: opening a FIFO waits for its writer.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Not a regular file")
    if os.pread(descriptor, len(_POINTER), 0) == _POINTER:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Is a Git LFS pointer; run `git lfs pull`")
    return descriptor


def read_regular(path: Path) -> bytes:
    """Return a regular file's content; OSError as for `open_regular`."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by a complete file; characters that UTF-8 lacks become question marks."""
    with _temporary(path, content) as temporary:
        os.replace(temporary, path)


def create_atomically(path: Path, content: str | bytes) -> bool:
    """Create `path` with all of `content`; return False if it exists already."""
    with _temporary(path, content) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            try:  # a file system without links
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            os.replace(temporary, path)
    return True


@contextmanager
def _temporary(path: Path, content: str | bytes) -> Iterator[str]:
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    temporary = str(path.parent / f".{path.name}.{secrets.token_hex(4)}")
    # The umask sets the mode of the file. There is no chmod, because some mounts refuse it.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        Path(temporary).unlink(missing_ok=True)


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """Return a folder's visible paths that match, by name; [] if the folder is missing."""
    found = (path for path in folder.iterdir() if path.match(pattern)) if folder.is_dir() else ()
    return sorted(path for path in found if not path.name.startswith("."))


@contextmanager
def refusing(path: Path, verb: str, refusal: type[Exception]) -> Iterator[None]:
    """Turn the block's OSError into a `refusal`: `PATH: cannot be VERB: REASON`."""
    try:
        yield
    except OSError as error:
        raise refusal(f"{path}: cannot be {verb}: {error.strerror or error}") from None


def unlock_and_close(descriptor: int) -> None:
    """Unlock and close a file, as a child's copy of the descriptor would keep the lock."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
