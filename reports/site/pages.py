"""The files that a site's runs share: index, histories, comparisons, scripts, styles."""

from collections.abc import Sequence
from typing import Any

from reports.compare import views
from reports.page.html import PACKAGE as PAGE
from reports.resources import environment, source
from reports.site.compared import RunPair
from reports.site.entry import PLOTLY, Entry
from reports.site.history import History

PACKAGE = "reports.site"
_STYLES = {PAGE: "style.css", "reports.profiles": "section.css", PACKAGE: "site.css"}


def shared_files(
    entries: Sequence[Entry], histories: Sequence[History], comparisons: Sequence[RunPair]
) -> dict[str, str]:
    """Return {site path: text} of files that all runs share. entries: the runs, newest first."""
    return {
        "assets/over-time.js": source(PAGE, "table.js") + source(PACKAGE, "history.js"),
        "assets/site.css": "".join(source(*each) for each in _STYLES.items()),
        "index.html": _rendered(
            "index.html.j2",
            entries=entries,
            histories=histories,
            comparisons={entry.id: [each for each in comparisons if each.b is entry] for entry in entries},
        ),
        **{each.page: _rendered("compared.html.j2", up="../", each=each) for each in comparisons},
        **{history.page: _over_time(history, entries) for history in histories},
    }


def _rendered(template: str, up: str = "", **values: Any) -> str:
    return environment(PACKAGE).get_template(template).render(up=up, plotly=PLOTLY, views=views, **values)


def _over_time(history: History, entries: Sequence[Entry]) -> str:
    names = {entry.id: entry.name for entry in entries if entry.id in history.runs}
    data = {"tone": history.tone, "marker": history.marker, "cases": history.cases, "names": names}
    return _rendered("history.html.j2", up="../", history=history, data=data)
