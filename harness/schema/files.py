"""Write files whole or not at all; read regular files; put an OSError in a sentence."""

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
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
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        # The umask sets the mode of the file. There is no chmod, because some mounts refuse it.
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


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
