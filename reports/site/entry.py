"""One run of a site: page, downloads, index entry, and cases for comparisons."""

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.schema.reason import printable
from harness.schema.run import Run
from reports.compare.side import RunCases
from reports.page.html import run_page
from reports.page.lines import Look, system_looks
from reports.tables import csv_text

PLOTLY = "assets/plotly.js"
_SLUG_LIMIT = 48


@dataclass(frozen=True)
class Entry:
    """A run as the site's index shows it, with its cases for comparisons (`run_cases`).

    id: unique in the site. updated: UTC start time of the last record; "" if no record has a time.
    systems: (name, label, color number, marker) of each system. note: the run's note in tables.toml, or "".
    profiles: number of profiles. measured: number of cases with a result. cases: number of planned cases.
    page: the path of the run's page in the site; "" without records.
    """

    run: Run
    run_cases: RunCases
    id: str
    updated: str
    systems: tuple[tuple[str, str, int, str], ...]
    note: str
    profiles: int
    measured: int
    cases: int
    page: str

    @property
    def name(self) -> str:
        return self.run_cases.side.name


def slug(name: str) -> str:
    """Return the name as a file name: 1 to 48 characters of a-z, 0-9 and single hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:_SLUG_LIMIT].strip("-") or "x"


def run_id(run: Run) -> str:
    """Return the folder's name as a slug and a hash of name, first command and its time."""
    name = run.folder.resolve().name
    begun = [part for request in run.file.requests[:1] for part in (request.at, *request.arguments)]
    return f"{slug(name)}-{_digest([name, *begun])}"


def system_id(name: str) -> str:
    return f"{slug(name)}-{_digest([name])}"


def note_of(folder: Path) -> str:
    """Return a run's note from section `[runs]` of the tables.toml next to its folder, or ""."""
    run = folder.resolve()
    try:
        rows = tomllib.loads((run.parent / "tables.toml").read_text("utf-8"))["runs"]["runs"]
        return next((printable(str(row["note"])) for row in rows if row["run"] == run.name), "")
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def files_of(run: Run, entry_id: str) -> tuple[Entry, dict[str, str]]:
    """Return (the run's index entry, {path in the site: content} of its page and downloads).

    entry_id: the run's id. A run without records has no files. Raises RecordError if the run is unreadable.
    """
    records, profiles, path = run.records(), run.profiles().values(), f"runs/{entry_id}.html"
    files: dict[str, str] = {}
    looks: dict[str, Look] = {}
    moments = [when for record in records if (when := utc_time(record.started_at))]
    if records:
        page, table = run_page(run, records, profiles, entry_id)
        files = {
            path: page,
            f"downloads/{entry_id}.csv": csv_text(table),
            f"downloads/{entry_id}.jsonl": "".join(f"{record.to_json()}\n" for record in records),
        }
        looks = system_looks(table, run.catalogue)
    named = [(name, run.catalogue.system_label(name)) for name in dict.fromkeys(each.case.system for each in records)]
    entry = Entry(
        run=run,
        run_cases=RunCases.of(run, records),
        id=entry_id,
        updated=max(moments).isoformat(timespec="seconds") if moments else "",
        systems=tuple((name, label, looks[name].tone, looks[name].marker) for name, label in named),
        note=note_of(run.folder),
        profiles=len(profiles),
        measured=len({record.case.key for record in records if record.status == "ok"}),
        cases=sum(len(job.cases) for job in run.jobs),
        page=path if records else "",
    )
    return entry, files


def utc_time(text: str) -> datetime | None:
    """Parse an ISO 8601 time and convert it to UTC; a time without a zone is in UTC. None for other text."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _digest(parts: list[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]
