"""Make a static site of any number of runs: an index, a page a run, systems over time, any two runs compared, a feed.

A run is drawn again where its files, or the program, are others than when it was drawn last, or where a file of it is
missing. Everything else is written where it differs from what is there. The site asks for nothing but its own files,
and opens from a disk.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.resources import files
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness.files import write_atomically
from harness.record import RecordError
from harness.run import Run, RunError
from reports.html import plotly_source
from reports.site_feed import checked_url
from reports.site_history import histories
from reports.site_pages import shared_files
from reports.site_run import ID, PLOTLY, Entry, Held, files_of, has_parquet, read_held, run_digest

MARKER = "ttt-bench-site.json"
NO_PARQUET = "Parquet is left out of the downloads: pip install 'ttt-bench[site]'"
NO_FEED = "the Atom feed is left out: it needs --url, where the site will be"
_SCHEMA = 1
_FOLDERS = ("assets", "data", "downloads", "over-time", "runs")
_OURS = re.compile(rf"(data|downloads|over-time|runs)/{ID.pattern}\.(js|html|csv|jsonl|parquet)")
_FEW = 8  # runs that are drawn sooner than another process starts
_MOST_PROCESSES = 8


@dataclass(frozen=True)
class Built:
    """runs: on the site; drawn: those that were drawn now; removed: files; notes: what was left out, and why."""

    runs: int
    drawn: int
    removed: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Kept:
    """What the marker file says of a run: of which files it was drawn, and its line of the index."""

    digest: str
    entry: Entry


def write_site(runs: Sequence[Path], out: Path, url: str = "") -> Built:
    """Write the site of `runs` to the folder `out`, or bring the site there up to date.

    url: where it will be published, for the feed's links. Raises RecordError for a folder that is no run, for the same
    run twice, for an `out` that is neither empty nor a site, and OSError where it cannot be written.
    """
    url = checked_url(url) if url else ""
    _refuse_what_is_no_site(out, runs)
    digests = _digests(runs)
    known = {kept.digest: kept for kept in _read_marker(out).values()}
    held = {digest: found for digest in digests if digest in known and (found := _held(out, known[digest].entry))}
    kept = {digest: known[digest] for digest in held}
    for name in _FOLDERS:
        (out / name).mkdir(parents=True, exist_ok=True)
    _write_marker(out, kept)  # a site from now on, and what is drawn below is not taken for drawn if this is killed
    changed = {digest: folder for digest, folder in digests.items() if digest not in kept}
    places = {kept[digest].entry.id: digests[digest] for digest in kept}
    for (digest, folder), (entry, content) in zip(changed.items(), _drawn(list(changed.values())), strict=True):
        if entry.id in places:
            raise RecordError(f"{places[entry.id]} and {folder}: are the same run ({entry.id}); name one of them")
        places[entry.id] = folder
        for path, text in content.items():
            write_atomically(out / path, text)
        kept[digest] = _Kept(digest, entry)
        held[digest] = read_held(out / f"data/{entry.id}.js")
    expected = _write_shared(out, [kept[digest] for digest in digests], [held[digest] for digest in digests], url)
    removed = _remove_others(out, expected)
    _write_marker(out, kept)
    notes = ([] if has_parquet() else [NO_PARQUET]) + ([] if url else [NO_FEED])
    return Built(len(digests), len(changed), removed, tuple(notes))


def refuse_what_is_no_site(folder: Path) -> None:
    """RecordError for a folder that `write_site` did not make."""
    if not folder.is_dir():
        why = "is not a folder" if folder.exists() else "no such folder"
        raise RecordError(f"{folder}: {why}; name that of a site")
    _read_marker(folder, must=True)


def _refuse_what_is_no_site(out: Path, runs: Sequence[Path]) -> None:
    place = out.resolve()
    for run in runs:
        if run.resolve() in (place, *place.parents) and Run.exists(run):
            raise RecordError(f"{out}: lies in the run {run}; name a folder outside of it")
    if not out.exists():
        return
    if not out.is_dir():
        raise RecordError(f"{out}: is not a folder; name one for the site")
    if any(out.iterdir()):
        _read_marker(out, must=True)
    for name in _FOLDERS:
        if (out / name).is_symlink() or ((out / name).exists() and not (out / name).is_dir()):
            raise RecordError(f"{out / name}: is no folder of a site; remove it, or name another folder")


def _read_marker(out: Path, must: bool = False) -> dict[str, _Kept]:
    """What the site in `out` was made of, by the run's id; nothing where another version made it.

    must: RecordError where the folder has no marker of ours.
    """
    try:
        values = json.loads((out / MARKER).read_text("utf-8"))
        if values["tool"] != "ttt-bench site":
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        if must:
            raise RecordError(f"{out}: is no site of ttt-bench, as it has no {MARKER}; it is left as it is") from None
        return {}
    try:
        return {each["entry"]["id"]: _kept(each) for each in values["runs"]}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _kept(values: Mapping[str, Any]) -> _Kept:
    entry = dict(values["entry"])
    for name in ("devices", "commits", "files"):
        entry[name] = tuple(entry[name])
    entry["systems"] = tuple((name, label) for name, label in entry["systems"])
    return _Kept(values["digest"], Entry(**entry))


def _write_marker(out: Path, kept: Mapping[str, _Kept]) -> None:
    values = {"tool": "ttt-bench site", "schema": _SCHEMA, "runs": [asdict(each) for each in kept.values()]}
    _write(out / MARKER, json.dumps(values, separators=(",", ":")) + "\n")


def _digests(runs: Sequence[Path]) -> dict[str, Path]:
    """Each run by the digest of what it is drawn from."""
    program = _program()
    found: dict[str, Path] = {}
    for folder in runs:
        if not Run.exists(folder):
            Run.open(folder)  # says why not
        try:
            digest = run_digest(folder, program)
        except OSError as error:
            raise RunError(f"{folder}: cannot be read: {error.strerror or error}") from None
        if digest in found:
            raise RecordError(f"{found[digest]} and {folder}: are the same run; name one of them")
        found[digest] = folder
    return found


def _program() -> str:
    """A digest of all that decides how a run is drawn."""
    total = hashlib.sha256()
    for package in ("harness", "reports"):
        for source in sorted(files(package).iterdir(), key=lambda each: each.name):
            if source.name.endswith((".py", ".j2", ".js", ".css")):
                total.update(f"\n{source.name}\n".encode() + source.read_bytes())
    packages = ["jinja2", "numpy", "pandas", "plotly", *(["pyarrow"] if has_parquet() else [])]
    total.update(" ".join(f"{name} {version(name)}" for name in packages).encode())
    return total.hexdigest()


def _held(out: Path, entry: Entry) -> Held | None:
    """What is kept of a run that was drawn before; None where a file of it is missing."""
    if not ID.fullmatch(entry.id) or not all(map(_OURS.fullmatch, entry.files)):
        return None
    try:
        if not all((out / path).stat().st_size for path in entry.files):
            return None
        return read_held(out / f"data/{entry.id}.js")
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def _drawn(folders: Sequence[Path]) -> Iterator[tuple[Entry, dict[str, str | bytes]]]:
    """The runs' files, drawn by as many processes as there are cores, in the order of the folders."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(folders) <= _FEW or cores == 1:
        yield from map(_files, folders)
        return
    with ProcessPoolExecutor(min(cores, _MOST_PROCESSES), get_context("spawn")) as pool:
        yield from pool.map(_files, folders, chunksize=4)


def _files(folder: Path) -> tuple[Entry, dict[str, str | bytes]]:
    return files_of(Run.open(folder))


def _write_shared(out: Path, kept: Sequence[_Kept], held: Sequence[Held], url: str) -> set[str]:
    """Write what all runs share; the paths of everything that belongs to the site."""
    entries = sorted((each.entry for each in kept), key=lambda entry: (entry.updated, entry.id), reverse=True)
    content = shared_files(entries, histories(entries, held), url) | {PLOTLY: plotly_source()}
    for path, text in content.items():
        _write(out / path, text)
    return {*content, *(path for entry in entries for path in entry.files)}


def _write(path: Path, text: str) -> None:
    """Leave a file alone that says the same already."""
    if path.is_symlink() or not path.is_file() or path.read_bytes() != text.encode("utf-8", "replace"):
        write_atomically(path, text)


def _remove_others(out: Path, expected: set[str]) -> int:
    """Remove what is left of runs and systems that the site has no more, and nothing that is not called like ours."""
    others = [out / "feed.xml"] if (out / "feed.xml").is_file() and "feed.xml" not in expected else []
    for name in ("data", "downloads", "over-time", "runs"):
        there = {f"{name}/{path.name}" for path in (out / name).iterdir()}
        others += [out / path for path in there - expected if _OURS.fullmatch(path)]
    for path in others:
        path.unlink()
    return len(others)
