"""Run the program; turn every user error into one sentence and an exit status."""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from bench.errors import INTERRUPTED, UserError
from bench.request import LISTS
from harness.schema.reason import printable
from harness.schema.record import RecordError


def run_app(app: typer.Typer) -> Any:
    """Run the app on sys.argv, and return its result or exit status. Raises usage errors."""
    _refuse_repeated_options(sys.argv[1:], typer.main.get_command(app))
    return app(standalone_mode=False)


def _refuse_repeated_options(words: Sequence[str], group: Any) -> None:
    """Raise UserError if an option that takes a value is given twice."""
    name = next((word for word in words if not word.startswith("-")), "")
    command = group.commands.get(name) if hasattr(group, "commands") else group  # an app with one command is no group
    given = [word.partition("=")[0] for word in words]
    for option in command.params if command else ():
        is_flag = getattr(option, "is_flag", True)  # arguments have none
        if not is_flag and sum(given.count(name) for name in option.opts) > 1:
            hint = "; separate its values by commas" if option.name in LISTS else ""
            raise UserError(f"{max(option.opts, key=len)} is given twice{hint}")


def guarded(call: Callable[[], Any]) -> int:
    """Call the program and return its exit status; print user errors on stderr."""
    try:
        status = call() or 0
        sys.stdout.flush()
        # Typer returns this status for Ctrl-C; a command that handles Ctrl-C raises SystemExit.
        return _print_error("interrupted", INTERRUPTED) if status == INTERRUPTED else status
    except (UserError, RecordError) as error:
        return _print_error(str(error), 2)
    except KeyboardInterrupt:
        return _print_error("interrupted", INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that Python's flush at exit succeeds
        return 1
    except OSError as error:
        if error.filename is None or not error.strerror:
            raise
        return _print_error(f"{error.filename}: {error.strerror}", 2)
    except Exception as error:
        # Usage errors have no common class, because newer releases of Typer bundle their own click.
        if not hasattr(error, "format_message"):
            raise
        return _print_error(error.format_message().rstrip("."), 2)


def _print_error(message: str, status: int) -> int:
    print(f"ttt-bench: {' '.join(printable(message).split())}", file=sys.stderr)
    return status
