"""Tables of whole runs for Markdown files: what each is, and how far one is from another.

    [runs]
    runs = [{ run = "h100", note = "the paper's suites in one go" }]

has a row a run: its GPU, when and by which commit it was measured, how many of its cases have a result, the note.

    [run-to-run]
    where = { suites = "fig15-forward|fig15-generate" }
    apart = [{ label = "one machine, one run after the other", a = "h100", b = "h100-again" }]

has a row a pair: by how much b's times per token differ from a's, in the median, how many of the points lie within 1, 2
and 3%, counted as `ttt-bench compare` does, and the point farthest off. `where`, and `without` in the same words,
choose points by columns of `ttt-bench table`.

    [cache-and-states]
    states = ["ttt-linear", "ttt-mlp", "mamba"]

needs no run: a row per system of the state of one 1.3b sequence, and from how many tokens on each KV cache is larger.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import pandas as pd

from bench.catalogue.systems import ADAPTERS, SYSTEMS
from bench.errors import UserError
from bench.kept import kept_bytes
from bench.models.config import model_config
from harness.schema.case import Case
from harness.schema.profile import Profile
from harness.schema.reason import counted, span
from harness.schema.run import Run
from reports.commits import short_commit
from reports.compare.comparison import compare
from reports.compare.views import NEAR
from reports.profiles.ceilings import common_ceilings, with_common_ceilings
from reports.stats import MARKS, UNSTEADY, UNSTEADY_TIMES, frame, marks_in, row_keys

NO_COLUMN = "no column {!r}; `ttt-bench table RUN --columns all` shows them"
KEY = "key of the case"  # a column of `Source.rows` beside those of the table


@dataclass(frozen=True)
class Source:
    """A run for tables: its rows of `reports.stats.frame`, and profiles by the keys of their cases; run: itself."""

    rows: pd.DataFrame
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    run: Run | None = None

    @classmethod
    def of(cls, run: Run) -> "Source":
        """That of a run; its profiles by common ceilings, as its page has them."""
        records, profiles = run.records(), run.profiles()
        ceilings = common_ceilings(records, profiles.values())
        rows = frame(records, run.catalogue, ceilings).assign(**{KEY: row_keys(records)})
        return cls(rows, dict(zip(profiles, with_common_ceilings([*profiles.values()], records), strict=True)), run)


SourceOf = Callable[[str], Source]
Lines = list[list[str]]


def _is_asked(value: Any, wanted: Any) -> bool:
    """Whether a cell of the frame is what is asked for; of suites, whether it is one of them."""
    values = value if isinstance(value, tuple) else (value,)
    return any(each in values for each in (wanted.split("|") if isinstance(wanted, str) else [wanted]))


def chosen(rows: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The rows whose columns are what is asked for; UserError for a column that is not there."""
    for name, wanted in where.items():
        if name not in rows:
            raise UserError(NO_COLUMN.format(name))
        rows = rows[rows[name].map(partial(_is_asked, wanted=wanted)).astype(bool)]
    return rows


def runs_table(asked: Mapping[str, Any], source_of: SourceOf) -> Lines:
    """A row a run."""
    lines = [["run", "GPU", "measured, UTC", "commit", "results", "what is in it"]]
    for each in asked["runs"]:
        name = str(each["run"]).rstrip("/").rpartition("/")[2]
        lines.append([f"`{name}`", *_facts(source_of(each["run"])), str(each.get("note", ""))])
    return lines


def _facts(source: Source) -> list[str]:
    """GPU, days and times, commits, and results of those planned."""
    run = _run_of(source)
    measured = source.rows[source.rows["status"] == "ok"]
    if measured.empty:
        raise UserError(f"{run.folder}: has no results")
    units = sorted(filter(None, set(measured["device_id"])))
    gpu = ", ".join(sorted(set(measured["device"]))) + (f" ({', '.join(units)})" if units else "")
    began = sorted(filter(None, measured["started_at"]))
    when = _period(began[0], began[-1]) if began else ""
    commits = list(dict.fromkeys(short_commit(each, 8) for each in measured["commit"]))
    commit = commits[0] if len(commits) == 1 else counted(len(commits), "commit")
    marks = [mark for cell in measured.get(MARKS, ()) for mark in _kinds(cell)]
    doubts = [f"{marks.count(mark)} {mark}" for mark in dict.fromkeys(marks)]
    planned = sum(len(job.cases) for job in run.jobs)
    return [gpu, when, commit, "; ".join([f"{measured[KEY].nunique()} of {planned}", *doubts])]


def _kinds(cell: Any) -> dict[str, None]:
    """What a row is marked for, whichever of its times are unsteady."""
    return dict.fromkeys(UNSTEADY if mark in UNSTEADY_TIMES.values() else mark for mark in marks_in(cell))


def _period(first: str, last: str) -> str:
    """`2026-11-23 13:59 to 14:24` of two ISO times, the last with its day where that is another."""
    day, last_day = first[:10], last[:10]
    return f"{day} {span(first[11:16], last[11:16] if last_day == day else f'{last_day} {last[11:16]}')}"


def _run_of(source: Source) -> Run:
    if source.run is None:
        raise ValueError("these rows are of no run")
    return source.run


def apart_table(asked: Mapping[str, Any], source_of: SourceOf) -> Lines:
    """A row a pair of runs."""
    lines = [["b over a, time per token", "points", "median", *(f"within {bar:.0%}" for bar in NEAR), "farthest"]]
    for each in asked["apart"]:
        where = dict(asked.get("where", {})) | each.get("where", {})
        a, b = source_of(each["a"]), source_of(each["b"])
        lines.append([str(each["label"]), *_distances(a, b, where, each.get("without"))])
    return lines


def _distances(a: Source, b: Source, where: Mapping[str, Any], without: Mapping[str, Any] | None) -> list[str]:
    rows = chosen(a.rows, where)
    keys = set(rows[KEY]) - (set(chosen(rows, without)[KEY]) if without else set())
    runs = _run_of(a), _run_of(b)
    found = [row for row in compare(*runs).rows if row.key in keys]
    if not found:
        raise UserError(f"{runs[0].folder} and {runs[1].folder}: no such case has a result in both")
    change = median(row.judged.ratio - 1 for row in found)
    farthest = max(found, key=lambda row: row.apart)
    within = [str(sum(row.apart <= bar for row in found)) for bar in NEAR]
    return [str(len(found)), f"{change:+.1%}", *within, f"{farthest.judged.ratio - 1:+.1%}: {farthest.label}"]


def states_table(asked: Mapping[str, Any], source_of: SourceOf) -> Lines:
    """Compare states with KV caches by the models' own sizes, at the state dtypes of the headline backends."""
    caches = {name: kept_bytes(*_sequence(name)) for name in ("transformer", "transformer-gqa")}
    lines = [["system", "state, MB", *(f"{name} cache larger from, tokens" for name in ("MHA", "GQA"))]]
    for name in asked["states"]:
        state = kept_bytes(*_sequence(name))
        label = next(system.label for system in SYSTEMS if system.name == name)
        lines.append([label, f"{state / 1e6:.1f}", *(f"{state // each + 1:,}" for each in caches.values())])
    return lines


def _sequence(name: str) -> tuple[Any, Case]:
    """The configuration of a system, and a case of one generated token of its headline backend."""
    adapter = next(a for a in ADAPTERS if a.system == name and a.headline and "generate" in a.phases)
    case = Case(name, adapter.backend, "1.3b", "generate", 1, 1, state_dtype=adapter.state_dtype)
    return model_config(name, case.size), case


TABLES: Mapping[str, Callable[[Mapping[str, Any], SourceOf], Lines]] = {
    "runs": runs_table,
    "apart": apart_table,
    "states": states_table,
}


def kind_of(asked: Mapping[str, Any]) -> str:
    """Which of `TABLES` a definition asks for; "" for a table of cases."""
    return next((kind for kind in TABLES if kind in asked), "")
