"""Write files whole or not at all; give up locks."""

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content`, text in UTF-8; what was there stays until all of it is on the disk. Raises OSError.

    What UTF-8 cannot hold becomes a question mark.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def unlock_and_close(descriptor: int) -> None:
    """Close a file and give up its lock at once: a process that another thread is starting may still have it open."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
