"""Print tables and notes on the terminal."""

import sys
from collections.abc import Iterable, Sequence


def note(*texts: str) -> None:
    """Print each text as a line on stderr."""
    for text in texts:
        print(f"ttt-bench: {text}", file=sys.stderr, flush=True)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; cells are literal text (no rich markup), and numbers never wrap."""
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for at, name in enumerate(columns):
        numeric = all(row[at].replace(".", "").isdigit() for row in rows if row[at])
        grid.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(highlight=False, markup=False, emoji=False).print(grid)
