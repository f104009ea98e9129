"""Build a static site of runs: index, run pages, histories and comparisons.

The site needs no network and can be opened from disk.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.schema.files import listed, write_atomically
from harness.schema.record import RecordError
from harness.schema.run import Run
from reports.page.embedding import plotly_source
from reports.site.compared import comparisons
from reports.site.entry import PLOTLY, Entry, files_of, run_id
from reports.site.history import histories
from reports.site.pages import shared_files

MARKER = "ttt-bench-site.json"  # identifies a folder as a site; lists the site's files


def write_site(runs: Sequence[Path], out: Path, on_run: Callable[[str], object] = lambda text: None) -> int:
    """Write a site of the run folders `runs` to `out`; delete outdated files of an earlier call.

    on_run: called with a line of progress for each run. Returns the number of deleted files.
    Raises RecordError if a run is unreadable or given twice, or if `out` is neither new, empty nor a site.
    Raises OSError if `out` cannot be written.
    """
    before = _files_of_site(out)
    opened: dict[str, Run] = {}
    for run in map(Run.open, runs):
        if (other := opened.setdefault(run_id(run), run)) is not run:
            raise RecordError(f"{other.folder} and {run.folder} are the same run; name one of them")
    _write_marker(out, before)
    entries: list[Entry] = []
    written: set[str] = set()
    for entry_id, run in opened.items():
        entry, content = files_of(run, entry_id)
        entries.append(entry)
        written |= _write(out, content)
        on_run(f"[{len(entries)}/{len(runs)}] {run.folder.name}")
    entries.sort(key=lambda entry: (entry.updated, entry.id), reverse=True)
    shared = shared_files(entries, histories(entries), comparisons(entries))
    written |= _write(out, shared | {PLOTLY: plotly_source()})
    outdated = [path for name in before - written if (path := out / name).is_file()]
    for path in outdated:
        path.unlink()
    _write_marker(out, written)
    return len(outdated)


def _files_of_site(out: Path) -> set[str]:
    if not out.is_dir() or not listed(out):
        return set()
    try:
        return set(json.loads((out / MARKER).read_text("utf-8"))["files"])
    except (OSError, ValueError, TypeError, KeyError):
        raise RecordError(f"{out}: is not a ttt-bench site, because {MARKER} is missing or invalid") from None


def _write_marker(out: Path, files: set[str]) -> None:
    _write(out, {MARKER: json.dumps({"files": sorted(files)}, indent=0) + "\n"})


def _write(out: Path, content: dict[str, str]) -> set[str]:
    for path, text in content.items():
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out / path, text)
    return {*content}
