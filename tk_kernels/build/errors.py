"""BuildError, and a context manager that turns an OSError into one."""

from collections.abc import Iterator
from contextlib import contextmanager

ANOTHER_CACHE = "set TTT_BENCH_CACHE to a folder that can be written"


class BuildError(RuntimeError):
    """A kernel cannot be built or loaded here; one sentence names the missing part."""


@contextmanager
def os_errors(what: str) -> Iterator[None]:
    """Turn an OSError in the block into a BuildError: `what`, the path and the reason."""
    try:
        yield
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise BuildError(f"{what}: {where}{error.strerror or error}") from None
