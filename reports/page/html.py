"""How do records become one page that opens from a disk, with no network?"""

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import pandas as pd
from jinja2 import Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from harness.case import Case
from harness.catalogue import Catalogue
from harness.record import Record
from reports.fairness import fairness, unchecked
from reports.fidelity import fidelity
from reports.machines import machines
from reports.page.citation import citation
from reports.page.figures import Figure, axis_title, days, ends, figures
from reports.page.headline import described, doubts, headline, small_models, unfinished
from reports.page.lines import system_looks
from reports.profiles.section import Section
from reports.profiles.section import script as profile_script
from reports.profiles.section import style as profile_style
from reports.resources import environment, source
from reports.roofline import RATE_COLUMNS
from reports.stats import (
    CASE_COLUMNS,
    MARKS,
    NOTES,
    OUTCOME_COLUMNS,
    SETTING_COLUMNS,
    STATISTIC_COLUMNS,
    frame,
    option_columns,
    row_keys,
    short_commit,
    suites_of_cases,
)
from reports.tables import plain, said

TITLE = "Test-Time Training, measured"
PACKAGE = "reports.page"
PROGRAM = ("table.js", "points.js", "drawing.js", "files.js", "pivot.js", "figures.js", "page.js")
DIGITS = 6
# Of the page's own columns; metrics and axes are called as the catalogue says.
LABELS = {
    "suites": "Suites",
    "system": "System",
    "backend": "Backend",
    "phase": "Phase",
    "status": "Status",
    "reason": "Reason",
    "device": "Device",
    "device_id": "Device id",
    "commit": "Commit",
    "samples": "Samples",
    "processes": "Processes",
    "throttled": "Throttled",
    "stop": "Stopped by",
    "started_at": "Started",
    "bound": "Floor set by",
    "cases": "Cases",
    "which": "Which",
    NOTES: "Notes",
    MARKS: "Marks",
}
MISSING = "missing"
STATUS_MEANINGS = {
    "ok": "measured",
    "gate": "outputs missed the reference's tolerance, so it was not timed",
    "failed": "raised an error",
    "killed": "its process was killed by a signal",
    "unstarted": "its worker could not be started",
    "timeout": "ran past the time limit",
    "oom": "did not fit in memory",
    "skipped": "not run, for the reason given",
    MISSING: "planned, and has no record: the run ended before it, or still goes on",
}
_ALWAYS_SHOWN = ("suites", "system", "backend", "phase", "batch", "context", "status", "latency_ms")
# What fits a screen; the page offers the others.
_CASE = ("system", "backend", "phase", "batch", "context", "scope", "state_dtype")
_SHORT = (*_CASE, "status", "latency_ms", "us_per_token", "samples")


@dataclass(frozen=True)
class Fact:
    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Around:
    """The site that a page is part of. All addresses are relative to the page.

    plotly: of the file that the pages share. links: (words, address) beside the page's sections; downloads: of files
    that hold what the page says.
    """

    plotly: str
    links: tuple[tuple[str, str], ...]
    downloads: tuple[tuple[str, str], ...]


def render(
    records: list[Record],
    catalogue: Catalogue,
    title: str | None = None,
    profiled: Section | None = None,
    around: Around | None = None,
    table: pd.DataFrame | None = None,
    missing: Sequence[Case] = (),
) -> str:
    """The page of `records` as HTML; everything it needs is in it, and its policy forbids all else.

    profiled: the section on the run's profiles, where it has any. around: of a page that is part of a site, which
    takes Plotly from there and offers the site's downloads instead of its own. table: `stats.frame` of the records,
    where it is at hand. missing: the planned cases without a record.
    """
    table = frame(records, catalogue) if table is None else table
    lost = failures(table, missing, catalogue)
    drawn = figures(table, catalogue)
    labels = {name: _label(name, catalogue) for name in (*table.columns, "cases", "which")}
    shown, same = _shown_columns(table, labels, catalogue)
    data = {
        "count": len(table),
        "columns": [_packed(name, table[name]) for name in table.columns],
        "numeric": [*(name for name in table.columns if _holds_numbers(table[name])), "cases"],
        "shown": shown,
        "short": [name for name in shown if name in _SHORT],
        "names": _names(table, catalogue),
        "settings": [*SETTING_COLUMNS, *option_columns(table)],
        "labels": labels,
        "scales": {name: scale for name in table.columns if (scale := catalogue.metric(name).scale) != 1},
        "figures": [figure.to_dict() for figure in drawn],
        "looks": [(system, asdict(look)) for system, look in system_looks(table, catalogue).items()],
        "failures": lost,
        "profiles": _profiled_rows(records, profiled),
    }
    sources = [source(PACKAGE, name) for name in PROGRAM]
    program = "\n".join(['"use strict";', *sources, *([profile_script()] if profiled else [])])
    loader, plotly = source(PACKAGE, "load.js"), None if around else plotly_source()
    found, models = headline(table, catalogue, drawn, missing), fairness(records, catalogue)
    return _template().render(
        label=LABELS.get,
        system_label=catalogue.system_label,
        backend_label=catalogue.backend_label,
        title=title or TITLE,
        meta=_meta(table, len(missing)),
        notices=[
            unfinished(table, missing, catalogue),
            small_models(table, (str(record.environment.get("device_kind")) for record in records)),
        ],
        findings=[*found[:1], *unchecked(models, catalogue), *found[1:]],
        descriptions=[described(table, catalogue, figure) for figure in drawn],
        citation=citation(title or TITLE, table, len(missing)),
        facts=_facts(table, len(missing)),
        suites=_by_suite(drawn),
        systems=[system for system in system_looks(table, catalogue) if any(_has(system, figure) for figure in drawn)],
        filters=_filters(table),
        same=same,
        statuses={status: meaning for status, meaning in STATUS_MEANINGS.items() if status in _statuses(lost)},
        fairness=models,
        fidelity=fidelity(records),
        machines=machines(records),
        data=embedded_json(data),
        around=around,
        records=None if around else packed("".join(f"{record.to_json()}\n" for record in records)),
        profiles=profiled.html if profiled else None,
        style=Markup(source(PACKAGE, "style.css") + (profile_style() if profiled else "")),
        plotly=plotly and _packed_plotly(),
        program=packed(program),
        loader=Markup(loader),
        script_hashes=[_hash(each) for each in (program, loader, plotly) if each],
    )


def _profiled_rows(records: list[Record], profiled: Section | None) -> dict[int, str]:
    """Where in the page the profile of each row's case is, for the rows that have one."""
    anchors = profiled.anchors if profiled else {}
    return {row: anchors[key] for row, key in enumerate(row_keys(records)) if key in anchors}


@cache
def _template() -> Template:
    return environment(PACKAGE).get_template("page.html.j2")


@cache
def plotly_source() -> str:
    """The script that draws."""
    return get_plotlyjs().replace("\r\n", "\n")


@cache
def _packed_plotly() -> Markup:
    return packed(plotly_source())


def embedded_json(value: Any) -> Markup:
    """JSON for inside a script element: no text in it can end the element or begin another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def failures(table: pd.DataFrame, missing: Sequence[Case], catalogue: Catalogue) -> list[dict[str, Any]]:
    """Cases without a result, those of one suite, system and reason together; `which` says which they are."""
    keys, axes = ["status", "system", "backend", "suites", "reason"], ["phase", "batch", "context"]
    suites = suites_of_cases(catalogue)
    unrun = [
        (MISSING, case.system, case.backend, suites.get(case.key, ()), "", case.phase, case.batch, case.context)
        for case in missing
    ]
    lost = [*table.loc[table["status"] != "ok", keys + axes].itertuples(index=False, name=None), *unrun]
    groups = pd.DataFrame(lost, columns=keys + axes).groupby(keys, sort=False, dropna=False)
    return [
        dict(zip(keys, key, strict=True)) | {"cases": len(rows), "which": _which(rows)}
        for key, rows in sorted(groups, key=lambda group: group[0])
    ]


def _statuses(failures: Sequence[dict[str, Any]]) -> set[str]:
    return {row["status"] for row in failures}


def _which(rows: pd.DataFrame) -> str:
    phases = ", ".join(rows["phase"].unique())
    return ", ".join([phases, *(f"{axis} {ends(rows[axis])}" for axis in ("batch", "context"))])


def _filters(table: pd.DataFrame) -> dict[str, list[str]]:
    """The values that the page's results can be filtered by; a case matches by any of its suites."""
    suites = sorted({suite for names in table["suites"] for suite in names})
    return {"suites": suites} | {name: sorted(table[name].unique()) for name in ("system", "status")}


def _label(name: str, catalogue: Catalogue) -> str:
    """What a column is called: in our words or, with its unit, in the catalogue's."""
    if name in LABELS:
        return LABELS[name]
    if any(metric.name == name for metric in catalogue.metrics):
        return axis_title(catalogue.metric(name))
    return catalogue.axis(name).label.partition(" (")[0]


def _shown_columns(
    table: pd.DataFrame, labels: dict[str, str], catalogue: Catalogue
) -> tuple[list[str], dict[str, str]]:
    """The columns worth a column, and those that are the same in every row, which are said once."""
    varied = [name for name in table.columns if name in _ALWAYS_SHOWN or table[name].nunique(dropna=False) > 1]
    shown = sorted((name for name in varied if name != MARKS), key=lambda name: _place(name, catalogue))
    same = {}
    for name in table.columns:
        if name not in varied and len(table) and (value := said(table[name].iloc[0])):
            same[labels[name]] = value
    return shown, same


def _place(name: str, catalogue: Catalogue) -> int:
    """Where a column stands in the results: what explains a latency after it, what is seldom read at the end."""
    if name in CASE_COLUMNS + OUTCOME_COLUMNS + STATISTIC_COLUMNS and name != "reason":
        return 0
    if name in RATE_COLUMNS or any(metric.name == name for metric in catalogue.metrics):
        return 1
    return 3 if name in ("started_at", "device_id", "commit", "reason", NOTES) else 2


def _names(table: pd.DataFrame, catalogue: Catalogue) -> dict[str, dict[str, str]]:
    """What legends call the values of a column, where that is not the value."""
    labels: dict[str, Callable[[str], str | None]] = {
        "system": catalogue.system_label,
        "backend": catalogue.backend_label,
        "phase": dict(catalogue.phases).get,
    }
    found = {column: {name: label(name) for name in table[column].unique()} for column, label in labels.items()}
    return {column: {name: said for name, said in of.items() if said} for column, of in found.items()}


def _holds_numbers(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _packed(name: str, column: pd.Series) -> dict[str, Any]:
    """A column of the page's data: numbers to `DIGITS` significant digits, words as codes of distinct values."""
    if _holds_numbers(column):
        return {"name": name, "numbers": [_rounded(value) for value in column.tolist()]}
    codes, found = pd.factorize(column, use_na_sentinel=False)
    values: dict[Any, int] = {}
    distinct = [values.setdefault(_word(value), len(values)) for value in found.tolist()]
    return {"name": name, "values": list(values), "codes": [distinct[code] for code in codes.tolist()]}


def _rounded(value: Any) -> Any:
    if value is pd.NA or value - value != 0:  # not a number, or infinite
        return None
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _word(value: Any) -> tuple[str, ...] | str | None:
    """A cell of words: suites stay apart, as the page filters by each."""
    if isinstance(value, tuple):
        return value
    value = plain(value)
    return value if value is None else str(value)


def packed(text: str) -> Markup:
    """Text compressed and in base 85, which takes a quarter more than its bytes; load.js unpacks it.

    The signs that mean something in HTML are replaced by others: , for <, . for > and : for &.
    """
    data = base64.b85encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()
    return Markup(data.translate(str.maketrans("<>&", ",.:")))


def _hash(script: str) -> str:
    """What the page's Content-Security-Policy calls this script by; any other script does not run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _has(system: str, figure: Figure) -> bool:
    return any(line.system == system for line in figure.lines)


def _by_suite(drawn: list[Figure]) -> list[tuple[str, list[tuple[int, Figure]]]]:
    """(suite, its figures with their numbers in the page's data); `a-forward` and `a-generate` go side by side."""
    suites: dict[str, list[tuple[int, Figure]]] = {}
    for number, figure in enumerate(drawn):
        suite = figure.suite.removesuffix("-forward").removesuffix("-generate")
        suites.setdefault(suite, []).append((number, figure))
    return list(suites.items())


def _facts(table: pd.DataFrame, missing: int) -> list[Fact]:
    counts = table["status"].value_counts().to_dict() | ({MISSING: missing} if missing else {})
    ok, cases = counts.pop("ok", 0), len(table) + missing
    lost = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    samples, throttled = int(table["samples"].sum()), int(table["throttled"].sum())
    return [
        Fact("Device", " · ".join(device for device in table["device"].unique() if device) or "not recorded"),
        Fact("Commit", _commits(table)),
        Fact("Measured", _dates(table)),
        Fact("Cases", f"{ok} measured", f"of {cases}"),
        Fact("Without a result", str(cases - ok), lost),
        Fact("Samples", f"{samples:,}", f"of which {throttled:,} while the device was throttled" if throttled else ""),
    ]


def _meta(table: pd.DataFrame, missing: int) -> str:
    """The run in a line: where, when, by which commit, how much."""
    measured = int((table["status"] == "ok").sum())
    devices = " and ".join(device for device in table["device"].unique() if device) or "device not recorded"
    commits = table["commit"].replace("", None).nunique()
    by = f"{commits} commits" if commits > 1 else f"commit {_commits(table)}"
    count = f"{measured} of {len(table) + missing} cases measured"
    unrun = [f"{missing} without a record"] if missing else []
    return " · ".join([devices, _dates(table), by, count, *unrun, *doubts(table)])


def _commits(table: pd.DataFrame) -> str:
    return " · ".join(short_commit(commit) for commit in table["commit"].unique() if commit) or "none"


def _dates(table: pd.DataFrame) -> str:
    return days(table["started_at"]) or "not recorded"
