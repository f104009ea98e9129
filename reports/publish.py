"""Write the page of a run to a file, or the table of a run to standard output."""

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.schema.files import refusing, write_atomically
from harness.schema.record import Record, RecordError
from harness.schema.run import Run


def write_report(run_folder: Path, out: Path) -> None:
    """Write a run's HTML page to `out`. On failure, an existing file stays unchanged.

    Raises RecordError if the run is unreadable or has no records, or if `out` exists and is not an HTML page.
    """
    from reports.page.html import run_page

    run = Run.open(run_folder)
    refuse_overwriting(out, "an HTML page", (b"<!doctype html", b"<html"))
    page, _ = run_page(run, _records(run), run.profiles().values())
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, page)


def write_table(run_folder: Path, fmt: str, columns: Sequence[str] = ()) -> None:
    """Write a table with one row per case to standard output.

    fmt, columns: as in `reports.tables.write_frame`.
    Raises RecordError if the run is unreadable or has no records, or a column is unknown.
    """
    from reports.stats import frame
    from reports.tables import write_frame

    run = Run.open(run_folder)
    records = _records(run)
    write_frame(frame(records, run.catalogue, run.profiles().values()), fmt, sys.stdout, run.catalogue, columns)


def _records(run: Run) -> list[Record]:
    if records := run.records():
        return records
    raise RecordError(f"{run.folder}: has no records yet; `ttt-bench status` shows how to continue it")


def refuse_overwriting(out: Path, kind: str, starts: tuple[bytes, ...]) -> None:
    """Raise RecordError if `out` is a folder or a file of another kind.

    kind: the allowed kind in words, such as "a PNG". starts: possible first bytes of an allowed file, in lower case.
    """
    if out.exists():
        with refusing(out, "written", RecordError), out.open("rb") as file:
            start = file.read(512).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
        if not start.startswith(starts):
            raise RecordError(f"{out}: exists and is not {kind}; name another file")
