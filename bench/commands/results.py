"""`ttt-bench table` and `ttt-bench report`: show a run."""

import sys
from pathlib import Path

from bench.errors import UserError
from bench.request import words
from harness.schema.files import refusing


def table(run: Path, fmt: str, systems: str | None, columns: str | None) -> None:
    """Print a run's records as text, Markdown, CSV or JSON."""
    from reports.publish import write_table

    write_table(run, fmt, systems=words("--systems", systems), columns=words("--columns", columns))


def report(run: Path, output: Path | None, systems: str | None) -> None:
    """Write the HTML page of a run."""
    from reports.publish import write_report

    output = output or run / "report.html"
    with refusing(output, "written", UserError):
        left_out = write_report(run, output, systems=words("--systems", systems))
    print(f"wrote {output}")
    for note in left_out:
        print(f"ttt-bench: {note}", file=sys.stderr)


def picture(run: Path, output: Path, figures: str, systems: str | None, inches: float | None) -> None:
    """Write a PNG or PDF of a run's figures. inches: the width of each figure alone, for a paper."""
    from reports.picture import write_picture

    with refusing(output, "written", UserError):
        write_picture(run, output, figures, words("--systems", systems), inches)
    print(f"wrote {output}")
