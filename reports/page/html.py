"""Render a run's records as one HTML file that opens from disk without a network."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

from harness.quality import by_case
from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.profile import Profile
from harness.schema.reason import counted, printable
from harness.schema.record import Record
from harness.schema.run import Run
from reports.fairness import fairness, model_of
from reports.machines import machines
from reports.page.data import page_data
from reports.page.embedding import packed, packed_plotly, plotly_source, script_hash
from reports.page.figures import Figure, value_range
from reports.page.findings import crossings, finding, flag_counts, headline, small_models, unfinished
from reports.page.ranking import views
from reports.profiles.section import script as profile_script
from reports.profiles.section import section
from reports.resources import TEMPLATES, source
from reports.stats import frame, suites_of_cases
from reports.tables import csv_text
from reports.words import days, short_commit

TITLE = "Test-Time Training, measured"
SCRIPTS = ("table", "points", "drawing", "files", "figures", "page")
MISSING = "missing"
STATUS_MEANINGS = {
    "incorrect": "failed a correctness check and has no time",
    "failed": "raised an error",
    "killed": "its process was killed by a signal",
    "unstarted": "its worker did not start",
    "timeout": "exceeded the time limit",
    "oom": "did not fit in memory",
    "skipped": "not run, for the reason given",
    MISSING: "planned, without a record: the run ended early or is still running",
}
UNTIMED = "No case was timed: the run only profiled or checked its cases. `ttt-bench run` measures them."


def run_page(
    run: Run, records: list[Record], profiles: Collection[Profile], in_site: str = ""
) -> tuple[str, pd.DataFrame]:
    """Return the page of a run with these records and profiles, as `render` does."""
    name = printable(run.folder.resolve().name)
    return render(records, run.catalogue, profiles, name, run.missing(records), in_site)


def render(
    records: list[Record],
    catalogue: Catalogue,
    profiles: Collection[Profile] = (),
    name: str = "",
    missing: Sequence[Case] = (),
    in_site: str = "",
) -> tuple[str, pd.DataFrame]:
    """Return a run's page as HTML and the table of its results (`reports.stats.frame`).

    name: the run's name, for the heading. missing: planned cases without a record.
    in_site: the run's id in a site, to whose Plotly and downloads the page links; "" for a page that embeds both.
    """
    table, profiled = frame(records, catalogue, profiles), section(records, profiles, catalogue)
    heading = ", ".join(filter(None, [name, " and ".join(devices_of(table))]))
    failed = failures(table, missing, catalogue)
    timed = bool((table["samples"] > 0).any() or not (table["status"] == "ok").any())
    kinds = [str(record.environment.get("device_kind")) for record in records]
    ranked = views(records, table, catalogue) if timed else []
    drawn = [view.figure for view in ranked]
    sources = [source(f"page/{name}.js") for name in SCRIPTS]
    program = "\n".join(['"use strict";', *sources, *([profile_script()] if profiled else [])])
    loader, plotly = source("page/load.js"), None if in_site else plotly_source()
    environments = machines(records)
    anchors = profiled.anchors if profiled else {}
    rows_with_profile = {row: anchors[key] for row, key in enumerate(by_case(records)) if key in anchors}
    counts = Counter(table["status"]) + Counter({MISSING: len(missing)})
    page = TEMPLATES.get_template("page/page.html.j2").render(
        title=heading if in_site else f"{TITLE}: {heading}",
        notices=["" if timed else UNTIMED, unfinished(table, len(missing)), small_models(table, kinds)],
        findings=headline(table, catalogue, ranked),
        sentences=[*map(finding, ranked)],
        details=[[*crossings(view), *view.figure.remarks] for view in ranked],
        facts=[fact for fact in _facts(table, counts, timed, environments.versions) if fact[1]],
        suites=_by_suite(drawn),
        failed=failed,
        statuses={
            each: STATUS_MEANINGS[each] for each in STATUS_MEANINGS if any(row["status"] == each for row in failed)
        },
        fairness=fairness(records),
        catalogue=catalogue,
        fidelity={each.case: each for each in records if "total_variation_mean" in each.metrics},
        model_of=model_of,
        machines=environments,
        data=page_data(table, catalogue, drawn, rows_with_profile),
        in_site=in_site,
        records=None if in_site else packed("".join(f"{record.to_json()}\n" for record in records)),
        table=None if in_site else packed(csv_text(table)),
        profiles=profiled.html if profiled else None,
        style=Markup(source("page/style.css") + (source("profiles/section.css") if profiled else "")),
        plotly=plotly and packed_plotly(),
        program=packed(program),
        loader=Markup(loader),
        script_hashes=[script_hash(each) for each in (program, loader, plotly) if each],
    )
    return page, table


def devices_of(table: pd.DataFrame) -> list[str]:
    return [device for device in table["device"].unique() if device]


def failures(table: pd.DataFrame, missing: Sequence[Case], catalogue: Catalogue) -> list[dict[str, Any]]:
    """Group cases without a result by status, system, backend, suites, reason, phase, L2 state.

    A group is a dict with the keys "status", "system", "backend", "suites", "reason", "cases" and "which".
    "cases" is the number of cases. "which" is a text on phase, batches and contexts, and on the L2 if it was cold.
    """
    keys, axes = ["status", "system", "backend", "suites", "reason"], ["phase", "l2", "batch", "context"]
    suites = suites_of_cases(catalogue)
    planned = [
        {name: getattr(case, name) for name in ("system", "backend", *axes)}
        | {"status": MISSING, "suites": suites.get(case.key, ()), "reason": ""}
        for case in missing
    ]
    failed = [*table.loc[table["status"] != "ok", keys + axes].to_dict("records"), *planned]
    groups = pd.DataFrame(failed, columns=keys + axes).groupby([*keys, "phase", "l2"], sort=False, dropna=False)
    return [
        dict(zip(keys, key[: len(keys)], strict=True)) | {"cases": len(rows), "which": _which(rows)}
        for key, rows in sorted(groups, key=lambda group: group[0])
    ]


def _which(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    cold = ["L2 cold"] if first["l2"] == "cold" else []
    return ", ".join([first["phase"], *(f"{axis} {value_range(rows[axis])}" for axis in ("batch", "context")), *cold])


def _by_suite(drawn: list[Figure]) -> list[tuple[str, list[tuple[int, Figure]]]]:
    """Group (index, figure) pairs by suite; suites `a-forward` and `a-generate` count as `a`."""
    suites: dict[str, list[tuple[int, Figure]]] = {}
    for number, figure in enumerate(drawn):
        suite = figure.suite.removesuffix("-forward").removesuffix("-generate")
        suites.setdefault(suite, []).append((number, figure))
    return list(suites.items())


def _facts(
    table: pd.DataFrame, counts: Counter[str], timed: bool, versions: dict[str, str]
) -> list[tuple[str, str, str]]:
    """Return the facts below the page's title as (name, value, note)."""
    units = table["device_id"].replace("", None).nunique()
    samples, throttled = int(table["samples"].sum()), int(table["throttled"].sum())
    commits = [short_commit(commit) for commit in table["commit"].unique() if commit]
    others = [f"{count} {status}" for status, count in sorted(counts.items()) if status != "ok"]
    result = "measured" if timed else "passed, not timed"
    return [
        ("Device", " · ".join(devices_of(table)) or "not recorded", counted(units, "GPU") if units > 1 else ""),
        *((name, value, "") for name, value in versions.items()),
        ("Commit", " · ".join(commits) or "not recorded", ""),
        ("Measured", days(table["started_at"]) or "not recorded", ""),
        ("Cases", f"{counts['ok']} of {counts.total()} {result}", ", ".join(others)),
        ("Samples", f"{samples:,}", f"{throttled:,} power-capped or throttled" if throttled else ""),
        ("Flagged", ", ".join(flag_counts(table)), ""),
    ]
