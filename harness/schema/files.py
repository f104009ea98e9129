"""Write files whole or not at all; list and read them as people have them; say why a file could not be had."""

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LEFT_BEHIND = ("Thumbs.db", "desktop.ini", "__MACOSX")
_POINTER = b"version https://git-lfs.github.com/spec/"
READ_LIMIT = 256 << 20  # bytes of a file that is read whole


def open_regular(path: Path) -> int:
    """A descriptor to read a regular file from. OSError for a Git LFS pointer, and for a pipe or a device.

    A pipe may block, and a device may never end.
    """
    # O_NONBLOCK: opening a FIFO waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "Not a regular file")
    refuse_pointer(descriptor)
    return descriptor


def refuse_pointer(descriptor: int) -> None:
    """Close a file that Git LFS left in place of its content, and raise OSError."""
    if os.pread(descriptor, len(_POINTER), 0) == _POINTER:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Is a Git LFS pointer; run `git lfs pull`")


def read_regular(path: Path, limit: int = READ_LIMIT) -> bytes:
    """The content of a regular file of at most `limit` bytes; OSError for any other."""
    with os.fdopen(open_regular(path), "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"Larger than {limit >> 20} MB" if limit >> 20 else f"Larger than {limit >> 10} kB")
    return content


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content`, text in UTF-8; what was there stays until all of it is on the disk. Raises OSError.

    What UTF-8 cannot hold becomes a question mark.
    """
    with _written_beside(path, content) as aside:
        os.replace(aside, path)


def create_atomically(path: Path, content: str | bytes) -> bool:
    """Whether `path` was made, whole; False where it is there: of several processes one makes it. Raises OSError."""
    with _written_beside(path, content) as aside:
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            try:  # a file system without links
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return False
            os.replace(aside, path)
    return True


@contextmanager
def _written_beside(path: Path, content: str | bytes) -> Iterator[str]:
    """A file with `content` in the folder of `path`, which is gone afterwards."""
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    aside = str(path.parent / f".{path.name}.{secrets.token_hex(4)}")
    # The umask sets its mode, and no chmod follows: some mounts refuse it.
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield aside
    finally:
        Path(aside).unlink(missing_ok=True)


def listed(folder: Path, pattern: str = "*") -> list[Path]:
    """The entries of a folder by name, without those that a file manager or another system leaves (`._records.jsonl`).

    Raises OSError where there is a folder that cannot be read.
    """
    found = (path for path in folder.iterdir() if path.match(pattern)) if folder.is_dir() else ()
    return sorted(path for path in found if not path.name.startswith(".") and path.name not in _LEFT_BEHIND)


@contextmanager
def refusing(path: Path, verb: str, refusal: type[Exception]) -> Iterator[None]:
    """Inside, an OSError is a `refusal` that says `PATH: cannot be VERB` and why. verb: "read" or "written"."""
    try:
        yield
    except OSError as error:
        raise refusal(f"{path}: cannot be {verb}: {error.strerror or error}") from None


def unlock_and_close(descriptor: int) -> None:
    """Close a file and give up its lock at once: a process that another thread is starting may still have it open."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
