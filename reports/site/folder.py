"""Checks of a site's folder, and its marker file, which lists the site's runs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.schema.files import listed, read_regular
from harness.schema.record import RecordError
from harness.schema.run import Run

MARKER = "ttt-bench-site.json"
FOLDERS = ("assets", "compared", "data", "downloads", "over-time", "runs")
_TOOL = "ttt-bench site"


def refuse_what_is_no_site(folder: Path) -> None:
    """Raise RecordError if `folder` is missing or holds no site."""
    if not folder.is_dir():
        why = "is not a folder" if folder.exists() else "no such folder"
        raise RecordError(f"{folder}: {why}; name that of a site")
    read_marker(folder)


def refuse_what_belongs_to_others(out: Path, runs: Sequence[Path]) -> None:
    """Raise RecordError if a site must not be written to the folder `out`.

    That is so if `out` lies in a run, is neither new, empty nor a site, or has links or files in place of subfolders.
    """
    place = out.resolve()
    for run in runs:
        if run.resolve() in (place, *place.parents) and Run.exists(run):
            raise RecordError(f"{out}: lies in the run {run}; name a folder outside of it")
    if not out.exists():
        return
    if not out.is_dir():
        raise RecordError(f"{out}: is not a folder; name one for the site")
    if listed(out):
        read_marker(out)
    for path in (out / name for name in FOLDERS):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise RecordError(f"{path}: is no folder of a site; remove it, or name another folder")


def read_marker(out: Path) -> list[Any]:
    """Return the JSON value of each run in the marker file; RecordError without a site."""
    try:
        values = json.loads(read_regular(out / MARKER))
        if values["tool"] != _TOOL:
            raise ValueError
        return list(values["runs"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise RecordError(f"{out}: is no site of ttt-bench, as its {MARKER} does not say so") from None


def marker_text(runs: Sequence[Any]) -> str:
    """Return the text of a marker file. runs: a JSON value for each run."""
    return json.dumps({"tool": _TOOL, "runs": list(runs)}, separators=(",", ":")) + "\n"
