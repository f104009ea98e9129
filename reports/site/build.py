"""Build a static site of runs: index, run pages, histories and comparisons.

The pages of a run are drawn again if the run's files or this program changed, or if a page is missing. All other files
of the site are rewritten if their text changed. The site needs no network and can be opened from disk.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from pydantic import TypeAdapter

from harness.schema.files import refusing, write_atomically
from harness.schema.record import RecordError
from harness.schema.run import Run
from harness.schema.run_file import RunError
from reports.compare.side import RunCases
from reports.page.embedding import plotly_source
from reports.site.compared import comparisons
from reports.site.entry import ID, PLOTLY, Entry, files_of, read_cases, run_digest
from reports.site.folder import FOLDERS, MARKER, marker_text, read_marker, refuse_what_belongs_to_others
from reports.site.history import histories
from reports.site.pages import shared_files

# Paths of the files that the site writes for runs, systems and comparisons, and may remove.
_OURS = re.compile(
    rf"(data|downloads|over-time|runs)/{ID.pattern}\.(json|html|csv|jsonl)|compared/{ID.pattern}--{ID.pattern}\.html"
    rf"|downloads/{ID.pattern}--[0-9a-f]{{16}}\.ncu-rep"
)
_ENTRY = TypeAdapter(Entry)


@dataclass(frozen=True)
class SiteBuild:
    """The result of building a site: how many runs, drawn runs and removed files.

    notes: sentences on runs that are no longer on the site.
    """

    runs: int
    drawn: int
    removed: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Drawn:
    """A run whose files in the site are up to date.

    digest: of the run's files and the program. folder: the run's folder. entry: the run in the index.
    held: the run's cases for comparisons, from its data file in the site.
    """

    digest: str
    folder: Path
    entry: Entry
    held: RunCases


def write_site(runs: Sequence[Path], out: Path, on_run: Callable[[str], object] = lambda text: None) -> SiteBuild:
    """Write the site of `runs`, given by folder, to `out`, or update it there.

    on_run: called with a line of progress for each run that is drawn.
    Raises RecordError if a folder is no run, a run is repeated, or `out` is neither new, empty nor a site.
    Raises OSError if `out` cannot be written.
    """
    refuse_what_belongs_to_others(out, runs)
    digests = _digests(runs)
    before = {entry.id for entry in _known(out).values()}
    drawn = _unchanged(out, digests)
    changed = {digest: folder for digest, folder in digests.items() if digest not in drawn}
    for name in FOLDERS:
        (out / name).mkdir(parents=True, exist_ok=True)
    # If this process is killed from here on, the next call draws the changed runs again.
    _write_marker(out, drawn.values())
    for each in _draw(out, changed, {each.entry.id: each.folder for each in drawn.values()}):
        drawn[each.digest] = each
        on_run(f"[{len(drawn)}/{len(digests)}] {each.folder.name}")
    ordered = [drawn[digest] for digest in digests]
    removed = _remove_others(out, _write_shared(out, ordered))
    _write_marker(out, ordered)
    gone = sorted(before - {each.entry.id for each in ordered})
    notes = (f"no longer on the site, as they were not named: {', '.join(gone)}",) if gone else ()
    return SiteBuild(len(digests), len(changed), removed, notes)


def _unchanged(out: Path, digests: Mapping[str, Path]) -> dict[str, _Drawn]:
    """Return {digest: run} for runs with up-to-date files in `out`, as ordered in `digests`.

    digests: {digest: folder} of all runs that the site is to show.
    """
    known = _known(out)
    held = {digest: _held(out, known[digest]) for digest in digests if digest in known}
    return {digest: _Drawn(digest, digests[digest], known[digest], found) for digest, found in held.items() if found}


def _known(out: Path) -> dict[str, Entry]:
    """Return {digest: index entry} of the runs in the marker file of `out`.

    {} if the file is missing or another version of the program wrote it.
    """
    if not (out / MARKER).exists():
        return {}
    try:
        return {each["digest"]: _ENTRY.validate_python(each["entry"]) for each in read_marker(out)}
    except (ValueError, TypeError, KeyError):
        return {}


def _write_marker(out: Path, drawn: Iterable[_Drawn]) -> None:
    _write(out / MARKER, marker_text([{"digest": each.digest, "entry": asdict(each.entry)} for each in drawn]))


def _draw(out: Path, changed: Mapping[str, Path], folders: dict[str, Path]) -> Iterator[_Drawn]:
    """Write the site's files of each changed run, then yield the run. changed: {digest: folder}.

    folders: {run id: folder} of the site's other runs; the drawn runs are added to this dict.
    Raises RecordError if two folders hold the same run.
    """
    for digest, folder in changed.items():
        entry, content = files_of(Run.open(folder))
        if entry.id in folders:
            raise RecordError(f"{folders[entry.id]} and {folder}: are the same run ({entry.id}); name one of them")
        folders[entry.id] = folder
        for path, text in content.items():
            write_atomically(out / path, text)
        yield _Drawn(digest, folder, entry, read_cases(out / f"data/{entry.id}.json"))


def _digests(runs: Sequence[Path]) -> dict[str, Path]:
    """Return {digest of the run's files and the program: folder} for the runs in these folders.

    Raises RecordError if a folder is no run, or if two folders hold the same run.
    """
    program = _program()
    found: dict[str, Path] = {}
    for folder in runs:
        if not Run.exists(folder):
            Run.open(folder)  # raises RecordError with the reason
        with refusing(folder, "read", RunError):
            digest = run_digest(folder, program)
        if digest in found:
            raise RecordError(f"{found[digest]} and {folder}: are the same run; name one of them")
        found[digest] = folder
    return found


def _program() -> str:
    """Return a digest of the code and package versions that affect a run's page."""
    total = hashlib.sha256()
    for package in ("harness", "reports"):
        for source in sorted(Path(str(files(package))).rglob("*")):
            if source.suffix in (".py", ".j2", ".js", ".css"):
                total.update(f"\n{source.name}\n".encode() + source.read_bytes())
    packages = ("jinja2", "numpy", "pandas", "plotly")
    total.update(" ".join(f"{name} {version(name)}" for name in packages).encode())
    return total.hexdigest()


def _held(out: Path, entry: Entry) -> RunCases | None:
    """Return a run's cases from its data file in `out`; None if a file is missing."""
    if not ID.fullmatch(entry.id) or not all(map(_OURS.fullmatch, entry.files)):
        return None
    try:
        if not all((out / path).stat().st_size for path in entry.files):
            return None
        return read_cases(out / f"data/{entry.id}.json")
    except (OSError, ValueError):
        return None


def _write_shared(out: Path, drawn: Sequence[_Drawn]) -> set[str]:
    """Write the files that all runs share; return the paths of all files of the site."""
    entries = sorted((each.entry for each in drawn), key=lambda entry: (entry.updated, entry.id), reverse=True)
    held = {each.entry.id: each.held for each in drawn}
    pairs = comparisons(entries, held, {each.entry.id: each.folder for each in drawn})
    content = shared_files(entries, histories(entries, held), pairs) | {PLOTLY: plotly_source()}
    for path, text in content.items():
        _write(out / path, text)
    return {*content, *(path for entry in entries for path in entry.files)}


def _write(path: Path, text: str) -> None:
    """Write the text to the file, unless the file has this text already."""
    if path.is_symlink() or not path.is_file() or path.read_bytes() != text.encode("utf-8", "replace"):
        write_atomically(path, text)


def _remove_others(out: Path, expected: set[str]) -> int:
    """Remove the site's files of runs and systems no longer shown; return their number.

    expected: the paths to keep. Files that the site did not write are kept, too.
    """
    others: list[Path] = []
    for name in FOLDERS:
        there = {f"{name}/{path.name}" for path in (out / name).iterdir()}
        others += [out / path for path in there - expected if _OURS.fullmatch(path)]
    for path in others:
        path.unlink()
    return len(others)
