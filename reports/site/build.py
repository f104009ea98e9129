"""Build a static site of runs: index, run pages, histories and comparisons.

The site needs no network and can be opened from disk.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.schema.files import write_atomically
from harness.schema.record import RecordError
from harness.schema.run import Run
from reports.page.embedding import plotly_source
from reports.site.compared import comparisons
from reports.site.entry import ID, PLOTLY, Drawn, files_of, run_id
from reports.site.folder import FOLDERS, refuse_what_belongs_to_others, write_marker
from reports.site.history import histories
from reports.site.pages import shared_files

# Paths of the files that the site writes for runs, systems and comparisons, and may remove.
_OURS = re.compile(
    rf"(downloads|over-time|runs)/{ID.pattern}\.(html|csv|jsonl)|compared/{ID.pattern}--{ID.pattern}\.html"
)


def write_site(runs: Sequence[Path], out: Path, on_run: Callable[[str], object] = lambda text: None) -> int:
    """Write the site of `runs`, given by folder, to `out`; remove the files of other runs.

    on_run: called with a line of progress for each run. Returns the number of removed files.
    Raises RecordError if a folder is no run, a run is repeated, or `out` is neither new, empty nor a site.
    Raises OSError if `out` cannot be written.
    """
    refuse_what_belongs_to_others(out, runs)
    opened: dict[str, Run] = {}
    for run in map(Run.open, runs):
        if (other := opened.setdefault(run_id(run), run)) is not run:
            raise RecordError(f"{other.folder} and {run.folder}: are the same run; name one of them")
    for name in FOLDERS:
        (out / name).mkdir(parents=True, exist_ok=True)
    write_marker(out)
    drawn: dict[str, Drawn] = {}
    written: set[str] = set()
    for found, run in opened.items():
        drawn[found], content = files_of(run, found)
        written |= _write(out, content)
        on_run(f"[{len(drawn)}/{len(runs)}] {run.folder.name}")
    return _remove_others(out, written | _write(out, _shared(drawn)))


def _shared(drawn: dict[str, Drawn]) -> dict[str, str]:
    entries = sorted((each.entry for each in drawn.values()), key=lambda entry: (entry.updated, entry.id), reverse=True)
    held = {found: each.cases for found, each in drawn.items()}
    pairs = comparisons(entries, held, {found: each.run for found, each in drawn.items()})
    return shared_files(entries, histories(entries, held), pairs) | {PLOTLY: plotly_source()}


def _write(out: Path, content: dict[str, str]) -> set[str]:
    for path, text in content.items():
        write_atomically(out / path, text)
    return {*content}


def _remove_others(out: Path, expected: set[str]) -> int:
    others: list[Path] = []
    for name in FOLDERS:
        there = {f"{name}/{path.name}" for path in (out / name).iterdir()}
        others += [out / path for path in there - expected if _OURS.fullmatch(path)]
    for path in others:
        path.unlink()
    return len(others)
