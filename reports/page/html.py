"""How do records become one page that opens from a disk, with no network?"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd
from jinja2 import Template
from markupsafe import Markup

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.reason import counted, printable
from harness.schema.record import Record
from reports.backend_settings import backend_settings
from reports.fairness import fairness, unequal
from reports.fidelity import fidelity
from reports.machines import machines
from reports.page.citation import citation, devices_of
from reports.page.data import LABELS, page_data, profiled_rows, said_once, samples
from reports.page.embedding import embedded_json, packed, packed_plotly, plotly_source, script_hash
from reports.page.figures import Figure, days, ends, figures, undrawn
from reports.page.findings import doubts, finding, headline, small_models, unfinished, unranked
from reports.page.lines import system_looks
from reports.page.part import Part
from reports.profiles.section import Section
from reports.profiles.section import script as profile_script
from reports.profiles.section import style as profile_style
from reports.resources import environment, source
from reports.stats import case_statuses, frame, suites_of_cases
from reports.words import short_commit

TITLE = "Test-Time Training, measured"
PACKAGE = "reports.page"
PROGRAM = (
    "table.js",
    "points.js",
    "stamps.js",
    "drawing.js",
    "files.js",
    "samples.js",
    "pivot.js",
    "figures.js",
    "page.js",
)
MISSING = "missing"
STATUS_MEANINGS = {
    "ok": "measured",
    "incorrect": "a check was missed, mostly as outputs differ from the reference, so it has no time",
    "failed": "raised an error",
    "killed": "its process was killed by a signal",
    "unstarted": "its worker could not be started",
    "timeout": "ran past the time limit",
    "oom": "did not fit in memory",
    "skipped": "not run, for the reason given",
    MISSING: "planned, and has no record: the run ended before it, or still goes on",
}


UNTIMED = "No case was timed: the run only profiled or checked them. ttt-bench run measures, in a run of its own."


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
    part: Part | None = None,
) -> str:
    """The page of `records` as HTML; everything it needs is in it, and its policy forbids all else.

    profiled: the section on the run's profiles, where it has any. around: of a page that is part of a site, which
    takes Plotly from there and offers the site's downloads instead of its own. table: `stats.frame` of the records,
    where it is at hand. missing: the planned cases without a record. part: which of the run's systems these are,
    where they are not all.
    """
    table = frame(records, catalogue) if table is None else table
    lost = failures(table, missing, catalogue)
    timed = _is_timed(table)
    drawn = figures(table, catalogue, missing) if timed else []
    data = page_data(table, catalogue, drawn, lost, profiled_rows(records, profiled))
    sources = [source(PACKAGE, name) for name in PROGRAM]
    program = "\n".join(['"use strict";', *sources, *([profile_script()] if profiled else [])])
    loader, plotly = source(PACKAGE, "theme.js") + source(PACKAGE, "load.js"), None if around else plotly_source()
    models, environments = fairness(records, catalogue), machines(records)
    return _template().render(
        label=LABELS.get,
        system_label=catalogue.system_label,
        backend_label=catalogue.backend_label,
        title=title or TITLE,
        notices=[
            part.notice if part else "",
            unranked(table, catalogue, drawn) if timed else UNTIMED,
            unfinished(table, missing, catalogue),
            small_models(table, (str(record.environment.get("device_kind")) for record in records)),
        ],
        findings=[*unequal(models, catalogue), *headline(table, catalogue, drawn), *undrawn(table, catalogue)],
        sentences=[finding(table, catalogue, figure) for figure in drawn],
        citation=citation(title or TITLE, table, len(missing), part),
        facts=_facts(table, len(missing), part, environments.versions),
        suites=_by_suite(drawn),
        systems=[system for system in system_looks(table, catalogue) if any(_has(system, figure) for figure in drawn)],
        filters=_filters(table),
        same=said_once(table, catalogue),
        statuses={status: meaning for status, meaning in STATUS_MEANINGS.items() if status in _statuses(lost)},
        fairness=models,
        catalogue=catalogue,
        fidelity=fidelity(records),
        machines=environments,
        settings=backend_settings(records),
        data=embedded_json(data),
        samples=packed(samples(records)),
        around=around,
        records=None if around else packed("".join(f"{record.to_json()}\n" for record in records)),
        profiles=profiled.html if profiled else None,
        style=Markup(source(PACKAGE, "style.css") + (profile_style() if profiled else "")),
        plotly=plotly and packed_plotly(),
        program=packed(program),
        loader=Markup(loader),
        script_hashes=[script_hash(each) for each in (program, loader, plotly) if each],
    )


def run_title(name: str, table: pd.DataFrame) -> str:
    """What tells the page of a run from those of others: the name of its folder, and its devices."""
    return ", ".join(filter(None, [printable(name), " and ".join(devices_of(table))]))


def _is_timed(table: pd.DataFrame) -> bool:
    """Whether the run times its cases, and does not only profile or check them."""
    return bool((table["samples"] > 0).any() or not (table["status"] == "ok").any())


def _done(table: pd.DataFrame) -> str:
    """What was done with the cases that are ok."""
    return "measured" if _is_timed(table) else "without a time"


@cache
def _template() -> Template:
    return environment(PACKAGE).get_template("page.html.j2")


def failures(table: pd.DataFrame, missing: Sequence[Case], catalogue: Catalogue) -> list[dict[str, Any]]:
    """Cases without a result, those of one suite, system, reason, phase and L2 together; `which` tells them."""
    keys, axes = ["status", "system", "backend", "suites", "reason"], ["phase", "l2", "batch", "context"]
    suites = suites_of_cases(catalogue)
    unrun = [
        {name: getattr(case, name) for name in ("system", "backend", *axes)}
        | {"status": MISSING, "suites": suites.get(case.key, ()), "reason": ""}
        for case in missing
    ]
    lost = [*table.loc[table["status"] != "ok", keys + axes].to_dict("records"), *unrun]
    groups = pd.DataFrame(lost, columns=keys + axes).groupby([*keys, "phase", "l2"], sort=False, dropna=False)
    return [
        dict(zip(keys, key[: len(keys)], strict=True)) | {"cases": len(rows), "which": _which(rows)}
        for key, rows in sorted(groups, key=lambda group: group[0])
    ]


def _statuses(failures: Sequence[dict[str, Any]]) -> set[str]:
    return {row["status"] for row in failures}


def _which(rows: pd.DataFrame) -> str:
    (phase,), (l2,) = rows["phase"].unique(), rows["l2"].unique()
    cold = ["L2 cold"] if l2 == "cold" else []
    return ", ".join([phase, *(f"{axis} {ends(rows[axis])}" for axis in ("batch", "context")), *cold])


def _filters(table: pd.DataFrame) -> dict[str, list[str]]:
    """The values that the page's results can be filtered by; a case matches by any of its suites."""
    suites = sorted({suite for names in table["suites"] for suite in names})
    return {"suites": suites} | {name: sorted(table[name].unique()) for name in ("system", "status")}


def _has(system: str, figure: Figure) -> bool:
    return any(line.system == system for line in figure.lines)


def _by_suite(drawn: list[Figure]) -> list[tuple[str, list[tuple[int, Figure]]]]:
    """(suite, its figures with their numbers in the page's data); `a-forward` and `a-generate` go side by side."""
    suites: dict[str, list[tuple[int, Figure]]] = {}
    for number, figure in enumerate(drawn):
        suite = figure.suite.removesuffix("-forward").removesuffix("-generate")
        suites.setdefault(suite, []).append((number, figure))
    return list(suites.items())


def _facts(table: pd.DataFrame, missing: int, part: Part | None, versions: dict[str, str]) -> list[Fact]:
    """The strip under the title: where, with which software, when and how much was measured."""
    counts = case_statuses(table) + Counter({MISSING: missing})
    ok, cases = counts["ok"], counts.total()
    del counts["ok"]
    notes = [f"{count} {status}" for status, count in sorted(counts.items())]
    notes += [f"{counted(part.others, 'other case')} not shown"] if part else []
    units = table["device_id"].replace("", None).nunique()
    samples, throttled = int(table["samples"].sum()), int(table["throttled"].sum())
    flagged = doubts(table)
    return [
        Fact("GPU", " · ".join(devices_of(table)) or "not recorded", counted(units, "GPU") if units > 1 else ""),
        *(Fact(name, value) for name, value in versions.items()),
        Fact("Commit", _commits(table)),
        Fact("Measured", _dates(table)),
        Fact("Cases", f"{ok} of {cases} {_done(table)}", ", ".join(notes)),
        Fact("Samples", f"{samples:,}", f"{throttled:,} throttled" if throttled else ""),
        *([Fact("Flagged", ", ".join(flagged))] if flagged else []),
    ]


def _commits(table: pd.DataFrame) -> str:
    return " · ".join(short_commit(commit) for commit in table["commit"].unique() if commit) or "not recorded"


def _dates(table: pd.DataFrame) -> str:
    return days(table["started_at"]) or "not recorded"
