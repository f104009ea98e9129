"""How does a call of the program end: done, by a mistake that is said in a sentence, interrupted, its output closed?"""

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
    """The exit status of a call, whose mistakes are one sentence on stderr."""
    try:
        status = call() or 0
        sys.stdout.flush()
        # Typer hands back this status for Ctrl-C; a command that has said what it means ends by SystemExit.
        return _print_error("interrupted", INTERRUPTED) if status == INTERRUPTED else status
    except (UserError, RecordError) as error:
        return _print_error(str(error), 2)
    except (typer.Abort, KeyboardInterrupt):
        return _print_error("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _end_of_stdout("")
    except OSError as error:
        if error.filename is not None and error.strerror:  # of a path that somebody gave
            return _print_error(f"{error.filename}: {error.strerror}", 2)
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        return _end_of_stdout(f"the output cannot be written: {error.strerror}")
    except Exception as error:
        # Typer brings its own click in newer releases, so its usage errors have no one class to catch.
        if not hasattr(error, "format_message"):
            raise
        return _print_error("; ".join(filter(None, (error.format_message().rstrip("."), _usage(error)))), 2)


def replace_closed_streams() -> None:
    """Give nobody's stdin, stdout and stderr where they are closed: else a file of a run would get their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _usage(error: Any) -> str:
    """Which arguments a command takes, where one is missing or too many; else ""."""
    wrong = type(error).__name__ == "MissingParameter" or "unexpected extra argument" in error.format_message()
    context = error.ctx if wrong else None
    if context is None:
        return ""
    return " ".join(["usage: ttt-bench", context.info_name, *context.command.collect_usage_pieces(context)])


def _end_of_stdout(message: str) -> int:
    """Nothing more can be printed; the interpreter must not try when it ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    return _print_error(message, 1) if message else 1


def _print_error(message: str, status: int) -> int:
    print(f"ttt-bench: {' '.join(printable(message).split())}", file=sys.stderr)
    return status
