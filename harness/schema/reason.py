"""Format messages and failure reasons as one printable sentence without folder names."""

import math
import os
import re
import traceback
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

LIMIT = 300
UPDATE = "update ttt-bench to read it"  # advice for a file of a newer schema

# Folders may name users or hosts, which a published record must not name.
_FOLDERS = re.compile(r"(?<![\w:/.~])~?(?:/[\w.+@-]+)+/(?=[\w.+@-])")
_ERROR = re.compile(r"^(\[\w+\]:? )?[\w.]*(Error|Exception|Exit|Interrupt)\b|\b(error|fault|killed|abort\w*)\b", re.I)
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception)(:|$)")
_FRAME = re.compile(r'^\s+File "(.*)", line (\d+)', re.MULTILINE)
_INSTALLED = re.compile(r"^<|[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]")
_ADVICE = re.compile(r"(?<=is free\.) .*")  # torch's advice after an out-of-memory error
_NOISE = re.compile(r"^(\s|Traceback|frame #|During handling|The above exception|Current thread|Thread 0x|[^\w]*$)")


def counted(number: int, thing: str) -> str:
    """Return a number and its noun, with an s for the plural: `1 job`, `2 jobs`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def span(first: object, last: object, to: str = " to ") -> str:
    """Return a range as text: `2k to 32k`, or just `2k` if both ends are equal."""
    return to.join(dict.fromkeys((str(first), str(last))))


def rounded(number: float | None, digits: int) -> float | None:
    """Return a number with `digits` significant digits; None for NaN, infinity and None."""
    return None if number is None or not math.isfinite(number) else float(f"{number:.{digits}g}")


def format_number(number: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, no exponent: `3,340`, `4.46`, `4.20`."""
    short = rounded(number, digits)
    if short is None:
        return str(number)
    power = math.floor(math.log10(abs(short))) if short else 0
    return f"{short:,.{max(0, digits - 1 - power)}f}"


def printable(text: str) -> str:
    """Replace control characters by spaces and characters that UTF-8 lacks by question marks."""
    if text.isascii() and text.isprintable():
        return text
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(each if each.isprintable() else " " for each in encodable)


def clipped(text: str, limit: int) -> str:
    """Return printable `text`, shortened to `limit` characters, between words if possible."""
    if len(text) <= limit:
        return printable(text)
    words = text[:limit].rpartition(" ")[0]
    return printable(words if len(words) > limit // 2 else text[: limit - 1]) + "…"


def sentence(text: str) -> str:
    """Return `text` as one line of at most `LIMIT` characters, without folder names."""
    line, home = " ".join(printable(text).split()), os.path.expanduser("~")
    line = line.replace(home, "~") if len(home) > 1 else line  # `_FOLDERS` may leave its last part, a user's name
    return clipped(_ADVICE.sub("", _FOLDERS.sub("", line)), LIMIT)


def of_exception(error: BaseException) -> str:
    """Return an exception's type and its message's first line: `ValueError: too long`."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return sentence(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def invalid(error: ValidationError) -> str:
    """Describe a validation error in one line, such as `repeat: Field required`."""
    # A wrong tool or schema explains all other errors.
    first = min(error.errors(include_url=False), key=lambda each: each["loc"][:1] not in (("tool",), ("schema",)))
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    shown = first["loc"] and first["type"] != "missing" and not isinstance(first["input"], dict)
    got = f", not {clipped(repr(first['input']), 60)}" if shown else ""
    if where == "schema" and isinstance(first["input"], int) and first["input"] > 1:
        got += f"; {UPDATE}"
    return f"{where}: {message}{got}" if where else message


def raised_at(error: BaseException) -> str:
    """Return the last frame outside installed packages, as " (my_rnn.py, line 18)"; "" if none."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    return _frame(frames)


def _frame(frames: Iterable[tuple[str, int | str | None]]) -> str:
    own = [(Path(file).name, line) for file, line in frames if not _INSTALLED.search(file)]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""


def error_line(stderr: str) -> str:
    """Return the last error in `stderr`, with an exception's file and line; else the last line."""
    lines = [line for line in stderr.splitlines() if not _NOISE.match(line)]
    errors = [line for line in lines if _ERROR.search(line)]
    last = (errors or lines or [""])[-1]
    return sentence(last) + (_frame(_FRAME.findall(stderr)) if _EXCEPTION.match(last) else "")
