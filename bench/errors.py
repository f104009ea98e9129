"""User errors: one sentence, exit status 2; and the other exit statuses of the program."""

from collections.abc import Iterable
from difflib import get_close_matches

REGRESSION, NOT_COMPARABLE, INTERRUPTED = 1, 3, 130  # exit statuses
CANNOT_IMPORT = "cannot be imported"  # in the reason of a system that lacks a package
FOR_A_CPU = "unavailable on CUDA"  # in that of one which nobody would run on a GPU


class UserError(ValueError):
    """A mistake in what was asked for; the message says what was wrong, with the value, and what to do."""


def unknown(what: str, word: str, known: Iterable[str], there_are: str = "") -> UserError:
    """That `word` is none of `known`: which one is meant where it is near one, otherwise which there are.

    there_are: those in fewer words.
    """
    names = list(known)
    near = get_close_matches(word, names, n=1)
    said = f"did you mean {near[0]}?" if near else f"there are {there_are or ', '.join(names)}"
    return UserError(f"{what}: unknown; {said}")
