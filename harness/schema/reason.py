"""Words for messages and for reasons of failures: one printable sentence without folders, fit to be published."""

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

LIMIT = 300

# Folders say who ran it and where, which a published record must not.
_FOLDERS = re.compile(r"(?<![\w:/.~])~?(?:/[\w.+@-]+)+/(?=[\w.+@-])")
_ERROR = re.compile(r"^(\[\w+\]:? )?[\w.]*(Error|Exception|Exit|Interrupt)\b|\b(error|fault|killed|abort\w*)\b", re.I)
_EXCEPTION = re.compile(r"^[\w.]*(Error|Exception)(:|$)")
_FRAME = re.compile(r'^\s+File "(.*)", line (\d+)', re.MULTILINE)
_INSTALLED = re.compile(r"^<|[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python3[^/\\]*[/\\]")
_AMOUNT = r"([\d.]+) ([KMG]?i?B|bytes)"
_CUDA_MEMORY = re.compile(
    rf"CUDA out of memory\. Tried to allocate {_AMOUNT}\."
    rf"(?: GPU \S+ has a total capacity of {_AMOUNT} of which {_AMOUNT} is free\.)?.*"
)
_UNITS = {"bytes": 2**30, "B": 2**30, "KiB": 2**20, "MiB": 2**10, "GiB": 1}
_NOISE = re.compile(r"^(\s|Traceback|frame #|During handling|The above exception|Current thread|Thread 0x|[^\w]*$)")


def counted(number: int, thing: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def span(first: object, last: object, to: str = " to ") -> str:
    """`2k to 32k`, or `2k` where both ends are it."""
    return to.join(dict.fromkeys((str(first), str(last))))


def rounded(number: float, digits: int = 3) -> str:
    """`3,340`, `4.46`, `4`: to three significant digits, or so many, without an exponent."""
    return f"{float(f'{number:.{digits}g}'):,.15g}"


def printable(text: str) -> str:
    """`text` with control characters as spaces and what UTF-8 cannot hold as question marks."""
    if text.isascii() and text.isprintable():
        return text
    encodable = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(each if each.isprintable() else " " for each in encodable)


def clipped(text: str, limit: int) -> str:
    """`text`, printable and at most `limit` characters long; it ends between two words where one begins late enough."""
    if len(text) <= limit:
        return printable(text)
    words = text[:limit].rpartition(" ")[0]
    return printable(words if len(words) > limit // 2 else text[: limit - 1]) + "…"


def sentence(text: str) -> str:
    """`text` on one line, without folders, at most 300 characters."""
    line = _without_home(" ".join(printable(text).split()))
    line = _CUDA_MEMORY.sub(_memory_said, _FOLDERS.sub("", line))
    return clipped(line, LIMIT)


def _memory_said(found: re.Match[str]) -> str:
    """`CUDA out of memory: needed 3.0 GiB more, 2.0 of 79.2 free`, of PyTorch's paragraph."""
    asked, total, free = (_gib(*found.groups()[at : at + 2]) for at in (0, 2, 4))
    return f"CUDA out of memory: needed {asked} GiB more" + (f", {free} of {total} free" if total else "")


def _gib(number: str | None, unit: str | None) -> str:
    if number is None or unit not in _UNITS:
        return ""
    gib = float(number) / _UNITS[unit]
    return f"{gib:.1f}" if gib >= 1 else f"{gib:.2g}"


def _without_home(line: str) -> str:
    """The home folder as `~`: its name may have letters that end a path in a sentence. A user may have none, or `/`."""
    try:
        home = str(Path.home())
    except RuntimeError:
        return line
    return line if home == "/" else line.replace(home, "~")


def of_exception(error: BaseException) -> str:
    """The type of the exception and the first line of its message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return sentence(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def invalid(error: ValidationError) -> str:
    """`samples_ms.2: Input should be a valid number, not 'many'`: the first thing that pydantic refused."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    said = first["msg"].removeprefix("Value error, ")
    shown = first["loc"] and first["type"] != "missing" and not isinstance(first["input"], dict)
    got = f", not {clipped(repr(first['input']), 60)}" if shown else ""
    return f"{where}: {said}{got}" if where else said


def raised_at(error: BaseException) -> str:
    """` (my_rnn.py, line 18)`: the innermost line of a program of one's own; "" where none was in the way."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    return _place(frames)


def _place(frames: Iterable[tuple[str, int | str | None]]) -> str:
    own = [(Path(file).name, line) for file, line in frames if not _INSTALLED.search(file)]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""


def last_words(stderr: str) -> str:
    """The last line of a dead process's stderr that says why, or "" if none does."""
    lines = [line for line in stderr.splitlines() if not _NOISE.match(line)]
    telling = [line for line in lines if _ERROR.search(line)]
    last = (telling or lines or [""])[-1]
    return sentence(last) + (_place(_FRAME.findall(stderr)) if _EXCEPTION.match(last) else "")
