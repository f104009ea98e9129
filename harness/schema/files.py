"""Write files whole or not at all; read regular files and TOML; report an OSError in one sentence."""

import errno
import os
import secrets
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

_POINTER = b"version https://git-lfs.github.com/spec/"


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read; OSError for a Git LFS pointer, a folder, a pipe or a device."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe waits for its writer
        raise OSError(errno.EINVAL, "Not a regular file")
    file = path.open("rb")
    if file.peek(len(_POINTER)).startswith(_POINTER):
        file.close()
        raise OSError(errno.EINVAL, "Is a Git LFS pointer; run `git lfs pull`")
    return file


def read_regular(path: Path) -> bytes:
    """Return a regular file's content; OSError for a Git LFS pointer, folder, pipe or device."""
    with open_regular(path) as file:
        return file.read()


def read_toml(path: Path, refusal: type[Exception]) -> dict[str, Any]:
    """Return a TOML file's content; `refusal` with one sentence if it cannot be read."""
    with refusing(path, "read", refusal):
        content = read_regular(path)
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        hint = '; a name with a slash needs quotes: ["transformer/vllm"]' if "table declaration" in str(error) else ""
        raise refusal(f"{path}: cannot be read as TOML: {error}{hint}") from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` whole or not at all; characters that UTF-8 lacks become question marks."""
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
    """Return a folder's non-hidden paths that match `pattern`, sorted; [] if `folder` is no folder."""
    found = (path for path in folder.iterdir() if path.match(pattern)) if folder.is_dir() else ()
    return sorted(path for path in found if not path.name.startswith("."))


@contextmanager
def refusing(path: Path, verb: str, refusal: type[Exception]) -> Iterator[None]:
    """Turn the block's OSError into a `refusal` with the message `PATH: cannot be VERB: REASON`."""
    try:
        yield
    except OSError as error:
        raise refusal(f"{path}: cannot be {verb}: {error.strerror or error}") from None
