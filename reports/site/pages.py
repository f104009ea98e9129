"""The files that a site's runs share: index, histories, comparisons, scripts, styles."""

from collections.abc import Sequence
from typing import Any

from reports.compare import views
from reports.resources import TEMPLATES, source
from reports.site.compared import RunPair
from reports.site.entry import PLOTLY, Entry
from reports.site.history import History

_STYLES = ("page/style.css", "profiles/section.css", "site/site.css")


def shared_files(
    entries: Sequence[Entry], histories: Sequence[History], comparisons: Sequence[RunPair]
) -> dict[str, str]:
    """Return {site path: text} of files that all runs share. entries: the runs, newest first."""
    return {
        "assets/over-time.js": source("page/table.js") + source("site/history.js"),
        "assets/site.css": "".join(map(source, _STYLES)),
        "index.html": _rendered(
            "index",
            entries=entries,
            histories=histories,
            comparisons={entry.id: [each for each in comparisons if each.b is entry] for entry in entries},
        ),
        **{each.page: _rendered("compared", up="../", each=each) for each in comparisons},
        **{history.page: _over_time(history, entries) for history in histories},
    }


def _rendered(template: str, up: str = "", **values: Any) -> str:
    return TEMPLATES.get_template(f"site/{template}.html.j2").render(up=up, plotly=PLOTLY, views=views, **values)


def _over_time(history: History, entries: Sequence[Entry]) -> str:
    names = {entry.id: entry.name for entry in entries if entry.id in history.runs}
    data = {"tone": history.tone, "marker": history.marker, "cases": history.cases, "names": names}
    return _rendered("history", up="../", history=history, data=data)
