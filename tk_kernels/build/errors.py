"""The error that this package raises, and a context manager that turns an OSError into it."""

from collections.abc import Iterator
from contextlib import contextmanager

ANOTHER_CACHE = "set TTT_BENCH_CACHE to a folder that can be written"


class BuildError(RuntimeError):
    """A kernel cannot be built or loaded here; the message is one sentence that names the missing part."""


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn an OSError into a BuildError with `what`, the path and the reason."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BuildError(f"{what}: {where}{error.strerror or error}") from None
