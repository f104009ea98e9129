"""Build a static site of runs: an index, a page per run, systems over time, comparisons.

A run is drawn again if its files or the program changed, or if one of its pages is missing. Other files are written if
they changed. The site needs no network and opens from a disk.
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
    """The numbers of runs, of runs drawn again and of removed files. notes: sentences on runs that left the site."""

    runs: int
    drawn: int
    removed: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Drawn:
    """A run whose pages are in the site. digest: of the run's folder and the program. held: the data file's content."""

    digest: str
    folder: Path
    entry: Entry
    held: RunCases


def write_site(runs: Sequence[Path], out: Path, on_run: Callable[[str], object] = lambda text: None) -> SiteBuild:
    """Write the site of `runs` to the folder `out`, or update the site there.

    on_run: called with a line of progress for each drawn run.
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
    """Return the runs whose files in `out` are up to date by digest, in the order of `digests`."""
    known = _known(out)
    held = {digest: _held(out, known[digest]) for digest in digests if digest in known}
    return {digest: _Drawn(digest, digests[digest], known[digest], found) for digest, found in held.items() if found}


def _known(out: Path) -> dict[str, Entry]:
    """Return the entries in the marker file of `out` by digest; {} if it is missing or another version wrote it."""
    if not (out / MARKER).exists():
        return {}
    try:
        return {each["digest"]: _ENTRY.validate_python(each["entry"]) for each in read_marker(out)}
    except (ValueError, TypeError, KeyError):
        return {}


def _write_marker(out: Path, drawn: Iterable[_Drawn]) -> None:
    _write(out / MARKER, marker_text([{"digest": each.digest, "entry": asdict(each.entry)} for each in drawn]))


def _draw(out: Path, changed: Mapping[str, Path], folders: dict[str, Path]) -> Iterator[_Drawn]:
    """Write the files of the changed runs and yield each run. folders: of all runs by id; the drawn ones are added.

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
    """Return the folders of the runs by the digest of their files and the program.

    Raises RecordError if a folder is no run, or if two hold the same run.
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
    """Return the digest of the code and packages that draw a run."""
    total = hashlib.sha256()
    for package in ("harness", "reports"):
        for source in sorted(Path(str(files(package))).rglob("*")):
            if source.suffix in (".py", ".j2", ".js", ".css"):
                total.update(f"\n{source.name}\n".encode() + source.read_bytes())
    packages = ("jinja2", "numpy", "pandas", "plotly")
    total.update(" ".join(f"{name} {version(name)}" for name in packages).encode())
    return total.hexdigest()


def _held(out: Path, entry: Entry) -> RunCases | None:
    """Read the data file of a run that was drawn before; None if one of the run's files in `out` is missing."""
    if not ID.fullmatch(entry.id) or not all(map(_OURS.fullmatch, entry.files)):
        return None
    try:
        if not all((out / path).stat().st_size for path in entry.files):
            return None
        return read_cases(out / f"data/{entry.id}.json")
    except (OSError, ValueError):
        return None


def _write_shared(out: Path, drawn: Sequence[_Drawn]) -> set[str]:
    """Write the shared files, and return the paths of all files of the site."""
    entries = sorted((each.entry for each in drawn), key=lambda entry: (entry.updated, entry.id), reverse=True)
    held = {each.entry.id: each.held for each in drawn}
    pairs = comparisons(entries, held, {each.entry.id: each.folder for each in drawn})
    content = shared_files(entries, histories(entries, held), pairs) | {PLOTLY: plotly_source()}
    for path, text in content.items():
        _write(out / path, text)
    return {*content, *(path for entry in entries for path in entry.files)}


def _write(path: Path, text: str) -> None:
    """Write a file if its text changed."""
    if path.is_symlink() or not path.is_file() or path.read_bytes() != text.encode("utf-8", "replace"):
        write_atomically(path, text)


def _remove_others(out: Path, expected: set[str]) -> int:
    """Remove the files of runs and systems that left the site, but no foreign files; return their number."""
    others: list[Path] = []
    for name in FOLDERS:
        there = {f"{name}/{path.name}" for path in (out / name).iterdir()}
        others += [out / path for path in there - expected if _OURS.fullmatch(path)]
    for path in others:
        path.unlink()
    return len(others)
