"""Run the program: every user error becomes one sentence and an exit status."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from bench.errors import INTERRUPTED, UserError
from harness.schema.reason import printable
from harness.schema.record import RecordError


def guarded(call: Callable[[], Any]) -> int:
    """Call the program and return its exit status; print a user error as one sentence on stderr."""
    try:
        status = call() or 0
        sys.stdout.flush()
        # Typer returns this status for Ctrl-C; a command that handles Ctrl-C raises SystemExit.
        return _print_error("interrupted", INTERRUPTED) if status == INTERRUPTED else status
    except (UserError, RecordError) as error:
        return _print_error(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        return _print_error("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _end_of_stdout("")
    except OSError as error:
        if error.filename is not None and error.strerror:
            return _print_error(f"{error.filename}: {error.strerror}", 2)
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        return _end_of_stdout(f"the output cannot be written: {error.strerror}")
    except Exception as error:
        # Typer bundles its own click in newer releases, so its usage errors share no class.
        if not hasattr(error, "format_message"):
            raise
        return _print_error(error.format_message().rstrip("."), 2)


def _end_of_stdout(message: str) -> int:
    """Redirect a broken stdout to /dev/null, for Python's flush at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return _print_error(message, 1) if message else 1


def _print_error(message: str, status: int) -> int:
    print(f"ttt-bench: {' '.join(printable(message).split())}", file=sys.stderr)
    return status
