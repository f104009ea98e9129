"""Checks of a site's folder, and the marker file that identifies the folder as a site."""

import json
from collections.abc import Sequence
from pathlib import Path

from harness.schema.files import listed, read_regular, write_atomically
from harness.schema.record import RecordError
from harness.schema.run import Run

MARKER = "ttt-bench-site.json"
FOLDERS = ("assets", "compared", "downloads", "over-time", "runs")
_TOOL = "ttt-bench site"


def refuse_what_belongs_to_others(out: Path, runs: Sequence[Path]) -> None:
    """Raise RecordError if `out` lies in a run, or is neither new, empty nor a site."""
    place = out.resolve()
    for run in runs:
        if run.resolve() in (place, *place.parents) and Run.exists(run):
            raise RecordError(f"{out}: lies in the run {run}; name a folder outside of it")
    if not out.exists():
        return
    if not out.is_dir():
        raise RecordError(f"{out}: is not a folder; name one for the site")
    if listed(out):
        _refuse_without_marker(out)
    for path in (out / name for name in FOLDERS):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RecordError(f"{path}: is no folder of a site; remove it, or name another folder")


def _refuse_without_marker(out: Path) -> None:
    try:
        if json.loads(read_regular(out / MARKER))["tool"] != _TOOL:
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise RecordError(f"{out}: is no site of ttt-bench, as its {MARKER} does not say so") from None


def write_marker(out: Path) -> None:
    write_atomically(out / MARKER, json.dumps({"tool": _TOOL}) + "\n")
