"""How is a run cited?"""

import re
from importlib.metadata import PackageNotFoundError, version

import pandas as pd

from harness.schema.reason import counted
from reports.page.figures import days
from reports.page.part import Part
from reports.stats import case_statuses
from reports.words import short_commit

_SPECIAL = {**{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
_SPECIAL["^"] = r"\textasciicircum{}"


def devices_of(table: pd.DataFrame) -> list[str]:
    """The devices that a table (of `stats.frame`) names, each once."""
    return [device for device in table["device"].unique() if device]


def citation(title: str, table: pd.DataFrame, missing: int = 0, part: Part | None = None) -> str:
    """A BibTeX entry of the run in `table` (of `stats.frame`): project, version, commit, device and date.

    missing: how many planned cases have no record. part: which of the run's systems are in it, where not all are.
    """
    when = days(table["started_at"])
    devices = devices_of(table)
    commits = [short_commit(commit) for commit in table["commit"].unique() if commit]
    statuses = case_statuses(table)
    said = [
        f"Measured on {' and '.join(devices) or 'a device that was not recorded'}",
        when,
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}" if commits else "",
        f"{statuses['ok']} of {statuses.total() + missing} cases",
        f"only {part.names}: the run has {counted(part.others, 'other case')}" if part else "",
    ]
    fields = {
        "title": f"{{{_escaped(title)}}}: a run of ttt-bench",
        "author": "{The ttt-bench authors}",
        "year": when[:4],
        "version": _version(),
        "note": _escaped(", ".join(filter(None, said))),
    }
    key = "-".join(filter(None, ["ttt-bench", re.sub(r"\W+", "-", when[:10]), *commits[:1], part.key if part else ""]))
    lines = ",\n".join(f"  {name:<7} = {{{value}}}" for name, value in fields.items() if value)
    return f"@misc{{{re.sub(r'[^A-Za-z0-9-]', '', key)},\n{lines}\n}}"


def _escaped(text: str) -> str:
    """For TeX, in one line."""
    return "".join(_SPECIAL.get(sign, sign) for sign in " ".join(text.split()))


def _version() -> str:
    try:
        return version("ttt-bench")
    except PackageNotFoundError:
        return ""
