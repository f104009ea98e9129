"""Print tables and notes on the terminal."""

import shutil
import sys
from collections.abc import Iterable, Sequence


def note(*texts: str) -> None:
    """Print each text as a line on stderr."""
    for text in texts:
        print(f"ttt-bench: {text}", file=sys.stderr, flush=True)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table that fits the terminal's width: long text wraps, numbers do not."""
    from reports.grid import text

    rows = list(rows)
    numeric = [all(row[at].replace(".", "").isdigit() for row in rows if row[at]) for at in range(len(columns))]
    print(text(columns, rows, numeric, shutil.get_terminal_size().columns), end="")
