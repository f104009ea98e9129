"""The BibTeX entry of a run."""

import re
from importlib.metadata import version

import pandas as pd

from reports.page.figures import days
from reports.stats import case_statuses
from reports.words import short_commit

_SPECIAL = {**{sign: f"\\{sign}" for sign in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}"}
_SPECIAL["^"] = r"\textasciicircum{}"


def devices_of(table: pd.DataFrame) -> list[str]:
    """Return the distinct device names in a `stats.frame` table."""
    return [device for device in table["device"].unique() if device]


def citation(title: str, table: pd.DataFrame, missing: int = 0, part: str = "") -> str:
    """Return a BibTeX entry for the run in `table`: project, version, commit, device and date.

    missing: the number of planned cases without a record. part: the notice of `part_of`, or "".
    """
    when = days(table["started_at"])
    commits = [short_commit(commit) for commit in table["commit"].unique() if commit]
    statuses = case_statuses(table)
    notes = [
        f"Measured on {' and '.join(devices_of(table)) or 'a device that was not recorded'}",
        when,
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}" if commits else "",
        f"{statuses['ok']} of {statuses.total() + missing} cases",
        f"{part[:1].lower()}{part[1:].rstrip('.')}",
    ]
    fields = {
        "title": f"{{{_escaped(title)}}}: a run of ttt-bench",
        "author": "{The ttt-bench authors}",
        "year": when[:4],
        "version": version("ttt-bench"),
        "note": _escaped(", ".join(filter(None, notes))),
    }
    key = "-".join(filter(None, ["ttt-bench", re.sub(r"\W+", "-", when[:10]), *commits[:1]]))
    lines = ",\n".join(f"  {name:<7} = {{{value}}}" for name, value in fields.items() if value)
    return f"@misc{{{re.sub(r'[^A-Za-z0-9-]', '', key)},\n{lines}\n}}"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(sign, sign) for sign in " ".join(text.split()))
