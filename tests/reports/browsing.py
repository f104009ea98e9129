"""A report in a real browser without a network, and a note of everything that went wrong in it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from synthetic_records import Made

from harness.schema.record import RecordError
from reports.page.html import render
from reports.picture import chromium, chromium_path


@contextmanager
def browser() -> Iterator:
    """Chromium; where there is none the test fails, because a page that nobody opened is not tested."""
    try:
        chromium_path()
    except RecordError as error:
        pytest.fail(f"the page's tests need a browser: {error}")
    with chromium("--process-per-site") as opened:
        yield opened


def save(made: Made, folder: Path, name: str) -> Path:
    path = folder / f"{name}.html"
    path.write_text(render(made.records, made.catalogue), "utf-8")
    return path


@contextmanager
def opened(browser, path: Path, part: str = "", every: bool = True, **options) -> Iterator:
    """The page at `path`, drawn, and the list of what went wrong, which stays empty (`check`).

    part: of the page, as an address has it after #, and with it. every: draw also the figures out of view, and open the
    lines and options of each. options: of `watched`.
    """
    address = path.as_uri()

    def is_own(url: str) -> bool:
        return url.partition("#")[0] == address or url.startswith("blob:")

    with watched(browser, is_own, **options) as (page, wrongs):
        page.goto(address + part)
        page.wait_for_selector("html[data-ready]", state="attached")
        if every:
            page.evaluate("drawAll(figures)")
            open_options(page)
        yield page, wrongs


@contextmanager
def watched(
    browser, is_own: Callable[[str], bool], viewport=None, color_scheme="light", reduced_motion=None, **options
) -> Iterator:
    """An empty page, and the list of what goes wrong in it. is_own: whether it may ask for an address."""
    page, wrongs = _context(browser, **options).new_page(), []
    page.set_viewport_size(viewport or {"width": 1280, "height": 720})
    page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion)
    page.on("console", lambda said: wrongs.append(f"console {said.type}: {said.text}"))
    page.on("pageerror", lambda error: wrongs.append(f"error: {error}"))
    page.on("requestfailed", lambda request: wrongs.append(f"failed: {request.url[:80]}"))
    page.on("request", lambda request: _note_request(request.url, is_own, wrongs))
    page.on("dialog", lambda dialog: wrongs.append("dialog"))
    yield page, wrongs
    check(page, wrongs)
    page.close()


@cache
def _context(browser, **options):
    """Where pages are opened; one stays open, so that the process of those that follow has the programs compiled."""
    context = browser.new_context(offline=True, accept_downloads=True, **options)
    context.set_default_timeout(240_000)  # a busy machine takes minutes to draw a page
    context.new_page().goto(Path(__file__).parent.as_uri())
    return context


@contextmanager
def in_front(page, wrongs: list[str]) -> Iterator:
    """A page that tests share, for one of them: a page behind another may wait seconds for a frame."""
    page.bring_to_front()
    yield page
    check(page, wrongs)


def check(page, wrongs: list[str]) -> None:
    """Fails if the page erred, asked for anything but itself, or ran what a record brought."""
    assert page.evaluate("window.injected") is None
    assert not wrongs, wrongs


def _note_request(url: str, is_own: Callable[[str], bool], wrongs: list[str]) -> None:
    if not url.startswith("data:") and not is_own(url):
        wrongs.append(f"request: {url[:80]}")


def open_options(page):
    page.evaluate("for (const each of document.querySelectorAll('.options')) each.open = true")


def eventually(page, read, expected):
    """Figures are redrawn one after another, so that a change reaches the last of them a little later."""
    for _ in range(100):
        if read() == expected:
            return
        page.wait_for_timeout(50)
    assert read() == expected


def lines_drawn(page, figure):
    """How many lines a figure has that a reader can see."""
    return page.locator(f"#figure-{figure} .xy .scatterlayer .trace .lines path.js-line").count()


def plotted(page, figure):
    return page.evaluate(
        "n => document.querySelector(`#figure-${n} .plot`).data.map(t => ({x: [...t.x], y: [...t.y]}))", figure
    )


def downloaded(page, button):
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    return Path(download.value.path()).read_text("utf-8")


def violations(page, at_least: int, only: str = "") -> list[tuple[str, list[str]]]:
    """Rules of axe-core that the page violates, each with elements that do: WCAG 2.2 A and AA, and its best practices.

    at_least: how many rules the page must be found to keep, or nothing was looked at. only: the rule to look at.
    """
    found = sorted((Path(__file__).parents[2] / "build").glob("axe-*.min.js"))
    if not found:
        pytest.skip("axe-core is not there: make axe")
    page.evaluate(found[-1].read_text("utf-8"))
    options = {"resultTypes": ["violations"], "preload": False} | ({"runOnly": [only]} if only else {})
    result = page.evaluate("options => axe.run(document, options)", options)
    assert len(result["passes"]) >= at_least
    return [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in result["violations"]]
