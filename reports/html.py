"""How do records become one page that opens from a disk, with no network?"""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from harness.record import Record
from reports.fairness import fairness
from reports.fidelity import fidelity
from reports.figures import Figure, backend_label, figures, system_label, system_looks, system_order
from reports.machines import machines
from reports.roofline import EXPLANATION_COLUMNS
from reports.stats import (
    CASE_COLUMNS,
    NOTES,
    OUTCOME_COLUMNS,
    SETTING_COLUMNS,
    STATISTIC_COLUMNS,
    frame,
    option_columns,
)
from reports.tables import plain

TITLE = "Test-Time Training, measured"
SCRIPTS = ("table.js", "figures.js", "page.js")
DIGITS = 6
LABELS = {
    "suite": "Suite",
    "system": "System",
    "backend": "Backend",
    "size": "Size",
    "phase": "Phase",
    "batch": "Batch",
    "context": "Context",
    "status": "Status",
    "reason": "Reason",
    "latency_ms": "Latency (ms)",
    "latency_ms_low": "95% low (ms)",
    "latency_ms_high": "95% high (ms)",
    "us_per_token": "µs per token",
    "tokens_per_s": "Tokens per s",
    "peak_memory_gb": "Peak memory (GB)",
    "dtype": "Dtype",
    "state_dtype": "State dtype",
    "timing": "Timing",
    "l2": "L2",
    "device": "Device",
    "commit": "Commit",
    "mini_batch": "Mini-batch",
    "form": "Form",
    "part": "Part",
    "steps": "Steps",
    "samples": "Samples",
    "throttled": "Throttled",
    "stop": "Stopped by",
    "started_at": "Started",
    "tflops": "TFLOP/s",
    "gbs": "GB/s",
    "floor_ms": "Floor (ms)",
    "bound": "Floor set by",
    "floor_share": "Share of floor",
    "copy_share": "Share of copy bandwidth",
    "launches": "Kernels launched",
    "registers": "Registers a thread",
    "spilled_bytes": "Spilled bytes a thread",
    "shared_bytes": "Shared bytes a block",
    "sequences_that_fit": "Sequences that fit",
    "total_variation_mean": "Total variation, mean",
    "total_variation_max": "Total variation, largest",
    "argmax_disagreement": "Argmax disagreement",
    "compare": "Compared with",
    "cases": "Cases",
    "which": "Which",
    NOTES: "Notes",
}
STATUS_MEANINGS = {
    "ok": "measured",
    "gate": "outputs missed the reference's tolerance, so it was not timed",
    "failed": "raised an error",
    "killed": "its process was killed by a signal",
    "timeout": "ran past the time limit",
    "oom": "did not fit in memory",
    "skipped": "cannot run on this machine",
}
_ALWAYS_SHOWN = ("suite", "system", "backend", "phase", "batch", "context", "status", "latency_ms")


@dataclass(frozen=True)
class Fact:
    name: str
    value: str
    note: str = ""


def render(records: list[Record], title: str | None = None) -> str:
    """The page of `records` as HTML; everything it needs is in it, and its policy forbids all else."""
    table = frame(records)
    drawn = figures(table)
    shown, same = _shown_columns(table)
    data = {
        "count": len(table),
        "columns": [_packed(name, table[name]) for name in table.columns],
        "numeric": [*(name for name in table.columns if _holds_numbers(table[name])), "cases"],
        "shown": shown,
        "settings": [*SETTING_COLUMNS, *option_columns(table)],
        "labels": LABELS,
        "figures": [figure.to_dict() for figure in drawn],
        "looks": list(system_looks(table).items()),
        "failures": failures(table),
    }
    plotly, script = get_plotlyjs().replace("\r\n", "\n"), _script()
    environment = Environment(loader=PackageLoader("reports", "."), autoescape=True, undefined=StrictUndefined)
    environment.globals |= {"label": LABELS.get, "system_label": system_label, "backend_label": backend_label}
    return environment.get_template("page.html.j2").render(
        title=title or TITLE,
        facts=_facts(records, table),
        suites=_by_suite(drawn),
        systems=[system for system in system_order(table) if any(_has(system, figure) for figure in drawn)],
        filters={name: sorted(table[name].unique()) for name in ("suite", "system", "status")},
        same=same,
        failures=data["failures"],
        statuses=STATUS_MEANINGS,
        fairness=fairness(records),
        fidelity=fidelity(records),
        machines=machines(records),
        data=embedded_json(data),
        records=_compressed(records),
        style=Markup(files("reports").joinpath("style.css").read_text("utf-8")),
        plotly=Markup(plotly),
        script=Markup(script),
        script_hashes=[_hash(plotly), _hash(script)],
    )


def embedded_json(value: Any) -> Markup:
    """JSON for inside a script element: no text in it can end the element or begin another."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def failures(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Cases without a result, those of one suite, system and reason together; `which` says which they are."""
    lost = table[table["status"] != "ok"]
    keys = ["status", "system", "backend", "suite", "reason"]
    groups = lost.groupby(keys, sort=False, dropna=False)
    return [
        dict(zip(keys, key, strict=True)) | {"cases": len(rows), "which": _which(rows)}
        for key, rows in sorted(groups, key=lambda group: group[0])
    ]


def _which(rows: pd.DataFrame) -> str:
    phases = ", ".join(rows["phase"].unique())
    return ", ".join([phases, *(f"{axis} {_span(rows[axis])}" for axis in ("batch", "context"))])


def _span(values: pd.Series) -> str:
    return "–".join(str(value) for value in dict.fromkeys((values.min(), values.max())))


def _shown_columns(table: pd.DataFrame) -> tuple[list[str], dict[str, str]]:
    """The columns worth a column, and those that are the same in every row, which are said once."""
    varied = [name for name in table.columns if name in _ALWAYS_SHOWN or table[name].nunique(dropna=False) > 1]
    ordered = sorted(varied, key=_place)
    first = {name: plain(table[name].iloc[0]) for name in table.columns if name not in varied and len(table)}
    same = {LABELS.get(name, name): str(value) for name, value in first.items() if value not in (None, "")}
    return ordered, same


def _place(name: str) -> int:
    """Where a column stands in the results: what explains a latency after it, what is seldom read at the end."""
    if name in EXPLANATION_COLUMNS:
        return 1
    if name in ("started_at", "commit", "reason", NOTES):
        return 3
    return 0 if name in CASE_COLUMNS + OUTCOME_COLUMNS + STATISTIC_COLUMNS else 2


def _holds_numbers(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _packed(name: str, column: pd.Series) -> dict[str, Any]:
    """A column of the page's data: numbers to `DIGITS` significant digits, words as codes of distinct values."""
    if _holds_numbers(column):
        return {"name": name, "numbers": [_rounded(value) for value in column.tolist()]}
    values: dict[Any, int] = {}
    codes = [values.setdefault(_text(value), len(values)) for value in column.tolist()]
    return {"name": name, "values": list(values), "codes": codes}


def _rounded(value: Any) -> Any:
    value = plain(value)
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _text(value: Any) -> str | None:
    value = plain(value)
    return value if value is None else str(value)


def _compressed(records: Iterable[Record]) -> str:
    lines = "".join(f"{record.to_json()}\n" for record in records)
    return base64.b64encode(gzip.compress(lines.encode(), compresslevel=6, mtime=0)).decode()


def _script() -> str:
    sources = (files("reports").joinpath(name).read_text("utf-8") for name in SCRIPTS)
    return "\n".join(['"use strict";', *sources])


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


def _facts(records: list[Record], table: pd.DataFrame) -> list[Fact]:
    counts = table["status"].value_counts().to_dict()
    ok = counts.pop("ok", 0)
    lost = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    samples, throttled = int(table["samples"].sum()), int(table["throttled"].sum())
    dirty = any(record.environment.get("dirty") for record in records)
    return [
        Fact("Device", " · ".join(device for device in table["device"].unique() if device) or "not recorded"),
        Fact("Commit", _commits(table), "with uncommitted changes" if dirty else ""),
        Fact("Measured", _dates(table)),
        Fact("Cases", f"{ok} measured", f"of {len(table)}"),
        Fact("Without a result", str(len(table) - ok), lost),
        Fact("Samples", f"{samples:,}", f"{throttled:,} while the device was throttled" if throttled else ""),
    ]


def _commits(table: pd.DataFrame) -> str:
    commits = [commit for commit in table["commit"].unique() if commit]
    return " · ".join(commit[:10] if re.fullmatch(r"[0-9a-f]{11,}", commit) else commit for commit in commits) or "none"


def _dates(table: pd.DataFrame) -> str:
    """First and last day (UTC) on which a case was started."""
    days = sorted({day for text in table["started_at"] if (day := _day(text))})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not recorded"


def _day(text: str) -> str:
    try:
        return datetime.fromisoformat(text).date().isoformat()
    except ValueError:
        return ""
