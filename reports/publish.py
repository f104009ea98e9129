"""From record files to a page or a table, in one call."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from harness.record import Record, RecordError, read_records


def write_report(
    record_paths: Iterable[Path], out: Path, title: str | None = None, systems: Sequence[str] = ()
) -> None:
    """Write the page of the records in these files or folders to `out`, replacing it; of `systems`, or of all.

    Raises harness.record.RecordError where a file cannot be read or a system has no records.
    """
    from reports.html import render

    page = render(of_systems(read_records(record_paths), systems), title)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8", newline="\n")


def write_table(record_paths: Iterable[Path], fmt: str, out: TextIO | None = None, systems: Sequence[str] = ()) -> None:
    """Write one row per record to `out` (standard output), as "csv", "json" or "text"; of `systems`, or of all.

    Raises ValueError for another format and harness.record.RecordError where a file cannot be read or a system has no
    records.
    """
    from reports.stats import frame
    from reports.tables import write_frame

    write_frame(frame(of_systems(read_records(record_paths), systems)), fmt, out or sys.stdout)


def of_systems(records: Sequence[Record], systems: Sequence[str]) -> list[Record]:
    """The records of these systems, each NAME or NAME/BACKEND; all for none. RecordError where one has no records."""
    names = [(record.case.system, record.case.system_backend) for record in records]
    for system in systems:
        if not any(system in name for name in names):
            there = ", ".join(dict.fromkeys(label for _, label in names))
            raise RecordError(f"--systems {system}: no records; there are those of {there}")
    return [
        record for record, name in zip(records, names, strict=True) if not systems or not set(name).isdisjoint(systems)
    ]
