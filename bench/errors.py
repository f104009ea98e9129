"""User errors (one sentence, exit status 2) and the other exit statuses."""

from collections.abc import Iterable
from difflib import get_close_matches

REGRESSION, NOT_COMPARABLE, INTERRUPTED = 1, 3, 130  # exit statuses
CANNOT_IMPORT = "cannot be imported"  # part of the reason to skip a system that lacks a package


class UserError(ValueError):
    """A mistake in a command; the message names the value and the remedy."""


def unknown(what: str, word: str, known: Iterable[str], short: str = "") -> UserError:
    """Return the error for an unknown name; it suggests the nearest known name, or lists all.

    what: the start of the message, such as "--systems x". word: the unknown name. short: shown instead of the list.
    """
    names = list(known)
    near = get_close_matches(word, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {short or ', '.join(names)}"
    return UserError(f"{what}: unknown; {hint}")
