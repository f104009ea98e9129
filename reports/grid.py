"""Tables as Markdown, or as text for a terminal."""

from collections.abc import Sequence
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.schema.reason import printable

_NO_WRAP = 100_000  # a width at which no line wraps


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> str:
    """Return a Markdown table; cells may contain Markdown, only vertical bars are escaped.

    head: the column titles. numeric: for each column whether it is right-aligned.
    """
    rule = ["---:" if is_number else "---" for is_number in numeric]
    lines = [_cells(head), rule, *map(_cells, rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def escaped(text: str) -> str:
    """Escape \\, `, *, _, <, >, [ and ] for Markdown; replace unprintable characters."""
    for sign in "\\`*_<>[]":
        text = text.replace(sign, f"\\{sign}")
    return printable(text)


def text(head: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool], width: int | None = None) -> str:
    """Return a table as plain text.

    numeric: for each column whether it is right-aligned and never wrapped.
    width: the most characters per line; None for no limit.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name, is_number in zip(head, numeric, strict=True):
        column = Text(printable(name))
        table.add_column(column, justify="right" if is_number else "left", no_wrap=is_number, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    out = StringIO()
    Console(file=out, width=width or _NO_WRAP, color_system=None).print(table)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _cells(row: Sequence[str]) -> list[str]:
    return [printable(cell).replace("|", "\\|") for cell in row]
