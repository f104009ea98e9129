"""Make a static site of any number of runs: an index, a page a run, systems over time, runs compared.

A run is drawn again where its files, or the program, are others than when it was drawn last, or where a file of it is
missing. Everything else is written where it differs from what is there. The site asks for nothing but its own files,
and opens from a disk.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from threading import Thread
from typing import Any

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

_OURS = re.compile(
    rf"(data|downloads|over-time|runs)/{ID.pattern}\.(json|html|csv|jsonl)|compared/{ID.pattern}--{ID.pattern}\.html"
)
_FEW = 8  # runs that are drawn sooner than another process starts
_MOST_PROCESSES = 8


@dataclass(frozen=True)
class SiteBuild:
    """runs: on the site; drawn: those that were drawn now; removed: files; notes: what was left out, and why."""

    runs: int
    drawn: int
    removed: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Drawn:
    """A run that is drawn in the site. digest: of what it was drawn from; held: what its data file says."""

    digest: str
    folder: Path
    entry: Entry
    held: RunCases


def write_site(runs: Sequence[Path], out: Path, on_run: Callable[[str], object] = lambda text: None) -> SiteBuild:
    """Write the site of `runs` to the folder `out`, or bring the site there up to date.

    on_run: called with each run as it is drawn. Raises RecordError for a folder that is no run, for the same run
    twice, for an `out` that is neither empty nor a site, and OSError where it cannot be written.
    """
    refuse_what_belongs_to_others(out, runs)
    digests = _digests(runs)
    before = {entry.id for entry in _known(out).values()}
    drawn = _unchanged(out, digests)
    changed = {digest: folder for digest, folder in digests.items() if digest not in drawn}
    for name in FOLDERS:
        (out / name).mkdir(parents=True, exist_ok=True)
    # A site from now on; and what is drawn below is not taken for drawn if this is killed.
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
    """The runs that are drawn in `out` from what they are now, in the order of `digests`."""
    known = _known(out)
    held = {digest: _held(out, known[digest]) for digest in digests if digest in known}
    return {digest: _Drawn(digest, digests[digest], known[digest], found) for digest, found in held.items() if found}


def _known(out: Path) -> dict[str, Entry]:
    """What the marker file of `out` says of its runs, by digest; nothing where another version wrote it."""
    if not (out / MARKER).exists():
        return {}
    try:
        return {each["digest"]: _entry(each["entry"]) for each in read_marker(out)}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _entry(values: Mapping[str, Any]) -> Entry:
    lists = {name: tuple(values[name]) for name in ("devices", "commits", "suites", "backends", "files")}
    return Entry(**{**values, **lists, "systems": tuple(map(tuple, values["systems"]))})


def _write_marker(out: Path, drawn: Iterable[_Drawn]) -> None:
    _write(out / MARKER, marker_text([{"digest": each.digest, "entry": asdict(each.entry)} for each in drawn]))


def _draw(out: Path, changed: Mapping[str, Path], places: dict[str, Path]) -> Iterator[_Drawn]:
    """Write the files of these runs. places: the folders of the other runs by their id."""
    for (digest, folder), (entry, content) in zip(changed.items(), _files(list(changed.values())), strict=True):
        if entry.id in places:
            raise RecordError(f"{places[entry.id]} and {folder}: are the same run ({entry.id}); name one of them")
        places[entry.id] = folder
        for path, text in content.items():
            write_atomically(out / path, text)
        yield _Drawn(digest, folder, entry, read_cases(out / f"data/{entry.id}.json"))


def _digests(runs: Sequence[Path]) -> dict[str, Path]:
    """Each run by the digest of what it is drawn from."""
    program = _program()
    found: dict[str, Path] = {}
    for folder in runs:
        if not Run.exists(folder):
            Run.open(folder)  # says why not
        with refusing(folder, "read", RunError):
            digest = run_digest(folder, program)
        if digest in found:
            raise RecordError(f"{found[digest]} and {folder}: are the same run; name one of them")
        found[digest] = folder
    return found


def _program() -> str:
    """A digest of all that decides how a run is drawn."""
    total = hashlib.sha256()
    for package in ("harness", "reports"):
        for source in sorted(Path(str(files(package))).rglob("*")):
            if source.suffix in (".py", ".j2", ".js", ".css"):
                total.update(f"\n{source.name}\n".encode() + source.read_bytes())
    packages = ("jinja2", "numpy", "pandas", "plotly")
    total.update(" ".join(f"{name} {version(name)}" for name in packages).encode())
    return total.hexdigest()


def _held(out: Path, entry: Entry) -> RunCases | None:
    """What is kept of a run that was drawn before; None where a file of it is missing."""
    if not ID.fullmatch(entry.id) or not all(map(_OURS.fullmatch, entry.files)):
        return None
    try:
        if not all((out / path).stat().st_size for path in entry.files):
            return None
        return read_cases(out / f"data/{entry.id}.json")
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _files(folders: Sequence[Path]) -> Iterator[tuple[Entry, dict[str, str]]]:
    """The runs' files, made by as many processes as there are cores, in the order of the folders."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(folders) <= _FEW or cores == 1:
        yield from map(_files_of, folders)
        return
    with ProcessPoolExecutor(min(cores, _MOST_PROCESSES), get_context("spawn"), _end_with_parent) as pool:
        yield from pool.map(_files_of, folders, chunksize=4)


def _end_with_parent() -> None:
    """Make this process end when its parent dies of a signal; else it waits for the next run forever."""
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        wait([parent.sentinel])
        os._exit(1)

    Thread(target=end, daemon=True).start()


def _files_of(folder: Path) -> tuple[Entry, dict[str, str]]:
    return files_of(Run.open(folder))


def _write_shared(out: Path, drawn: Sequence[_Drawn]) -> set[str]:
    """Write what all runs share; the paths of everything that belongs to the site."""
    entries = sorted((each.entry for each in drawn), key=lambda entry: (entry.updated, entry.id), reverse=True)
    held = {each.entry.id: each.held for each in drawn}
    pairs = comparisons(entries, held, {each.entry.id: each.folder for each in drawn})
    content = shared_files(entries, histories(entries, held), pairs) | {PLOTLY: plotly_source()}
    for path, text in content.items():
        _write(out / path, text)
    return {*content, *(path for entry in entries for path in entry.files)}


def _write(path: Path, text: str) -> None:
    """Leave a file alone that says the same already."""
    if path.is_symlink() or not path.is_file() or path.read_bytes() != text.encode("utf-8", "replace"):
        write_atomically(path, text)


def _remove_others(out: Path, expected: set[str]) -> int:
    """Remove what is left of runs and systems that the site has no more, and nothing that is not called like ours."""
    others: list[Path] = []
    for name in FOLDERS:
        there = {f"{name}/{path.name}" for path in (out / name).iterdir()}
        others += [out / path for path in there - expected if _OURS.fullmatch(path)]
    for path in others:
        path.unlink()
    return len(others)
