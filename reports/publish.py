"""From record files to a page or a table, in one call."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from harness.record import read_records


def write_report(record_paths: Iterable[Path], out: Path, title: str | None = None) -> None:
    """Write the page of all records in these files or folders to `out`, replacing it.

    Raises harness.record.RecordError where a file cannot be read.
    """
    from reports.html import render

    page = render(read_records(record_paths), title)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8", newline="\n")


def write_table(record_paths: Iterable[Path], fmt: str, out: TextIO | None = None) -> None:
    """Write one row per record to `out` (standard output), as "csv", "json" or "text".

    Raises ValueError for another format and harness.record.RecordError where a file cannot be read.
    """
    from reports.stats import frame
    from reports.tables import write_frame

    write_frame(frame(read_records(record_paths)), fmt, out or sys.stdout)
