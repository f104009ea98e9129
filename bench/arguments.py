"""Which arguments of a call are refused that Typer would take in another sense?"""

from collections.abc import Sequence
from typing import Any

from bench.errors import UserError

LISTS = ("--systems", "--batch", "--context", "--phase", "--columns")
_PLACES = ("--out", "--output", "-o")


def refuse_arguments(words: Sequence[str], group: Any) -> None:
    """UserError for an option of a command of `group` that is given twice, or a path that is empty."""
    _refuse_repeated(words, group.commands)
    for word, after in zip(words, [*words[1:], None], strict=False):
        option, equals, value = word.partition("=")
        if option in _PLACES and (value if equals else after) == "":
            raise UserError(f"{option} '': is empty; name a folder or file")  # a path of it would be the current folder


def _refuse_repeated(words: Sequence[str], commands: Any) -> None:
    """UserError for an option of one value that is given twice: the last would be taken, without a word."""
    command = commands.get(next((word for word in words if not word.startswith("-")), ""))
    given = [word.partition("=")[0] for word in words]
    for option in command.params if command else ():
        if getattr(option, "multiple", True) or getattr(option, "is_flag", False):
            continue
        short = [name for name in option.opts if not name.startswith("--")]
        if sum(given.count(name) for name in option.opts) + sum(_is_glued(word, short) for word in words) > 1:
            name = max(option.opts, key=len)
            raise UserError(f"{name} is given twice{': separate its values by commas' if name in LISTS else ''}")


def _is_glued(word: str, short: Sequence[str]) -> bool:
    """Whether a word is one of these short options with its value behind it at once, as in -oFILE."""
    return any(word.startswith(name) and word.partition("=")[0] != name for name in short)
