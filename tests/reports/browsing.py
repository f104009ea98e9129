"""Open pages in Chromium without a network, and collect their errors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from synthetic_records import Made

from harness.schema.record import RecordError
from reports.page.html import render
from reports.picture import chromium, chromium_path

PHONE = {"width": 390, "height": 844}


@contextmanager
def browser() -> Iterator:
    try:
        chromium_path()
    except RecordError as error:
        pytest.fail(f"the page's tests need a browser: {error}")  # a skip would leave pages untested
    with chromium("--process-per-site") as opened:
        yield opened


def save(made: Made, folder: Path, name: str) -> Path:
    path = folder / f"{name}.html"
    path.write_text(render(made.records, made.catalogue)[0], "utf-8")
    return path


@contextmanager
def opened(browser, path: Path, part: str = "", draw_all: bool = True, **options) -> Iterator:
    """Open a report page; yield (page, list of its errors), and at the end fail if there are any.

    part: URL fragment such as #id. draw_all: draw all figures and unfold options. options: for a Playwright context.
    """
    address = path.as_uri()

    def is_own(url: str) -> bool:
        return url.partition("#")[0] == address or url.startswith("blob:")

    with watched(browser, is_own, **options) as (page, errors):
        page.goto(address + part)
        page.wait_for_selector("html[data-ready]", state="attached")
        if draw_all:
            page.evaluate("drawAll(figures)")
            open_all(page, ".options")
        yield page, errors


@contextmanager
def site_opened(browser, site: Path, path: str, **options) -> Iterator:
    """Open a page of a site; at the end, fail if it loaded files from outside the site or raised an error."""
    with watched(browser, lambda url: url.startswith(f"{site.as_uri()}/"), **options) as (page, _):
        page.goto(f"{site.as_uri()}/{path}")
        settle(page)
        yield page


def settle(page):
    # A function: the policy of the pages refuses an expression, which Playwright evaluates again at each frame.
    page.wait_for_function("() => !document.scripts.length || document.documentElement.dataset.ready === 'yes'")


@contextmanager
def watched(browser, is_own: Callable[[str], bool], viewport=None, color_scheme="light", **options) -> Iterator:
    page, errors = _context(browser, **options).new_page(), []
    page.set_viewport_size(viewport or {"width": 1280, "height": 720})
    page.emulate_media(color_scheme=color_scheme)
    page.on("console", lambda message: errors.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: errors.append(f"error: {error}"))
    page.on("requestfailed", lambda request: errors.append(f"failed: {request.url[:80]}"))
    page.on("request", lambda request: _note_request(request.url, is_own, errors))
    page.on("dialog", lambda dialog: errors.append("dialog"))
    yield page, errors
    check(page, errors)
    page.close()


@cache
def _context(browser, **options):
    """Return a browser context with one page left open, which keeps compiled scripts for later pages."""
    context = browser.new_context(offline=True, accept_downloads=True, **options)
    context.set_default_timeout(240_000)  # a busy machine draws slowly
    context.new_page().goto(Path(__file__).parent.as_uri())
    return context


@contextmanager
def in_front(page, errors: list[str]) -> Iterator:
    """Yield `page` in the foreground, because Chromium delays hidden pages. At the end, fail if it has errors."""
    page.bring_to_front()
    yield page
    check(page, errors)


def check(page, errors: list[str]) -> None:
    assert page.evaluate("window.injected") is None
    assert not errors, errors


def _note_request(url: str, is_own: Callable[[str], bool], errors: list[str]) -> None:
    if not url.startswith("data:") and not is_own(url):
        errors.append(f"request: {url[:80]}")


def open_all(page, selector):
    page.evaluate(
        """selector => Promise.all([...document.querySelectorAll(selector)].filter((each) => !each.open).map((each) =>
          new Promise((resolve) => {
            each.addEventListener("toggle", resolve, { once: true });
            each.open = true;
          })))""",
        selector,
    )


def eventually(page, read, expected):
    for _ in range(1000):
        if read() == expected:
            return
        page.wait_for_timeout(50)
    assert read() == expected


def assert_fits_a_phone(page, part: str) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    beyond = page.evaluate(
        "part => [...document.querySelectorAll(`${part} *`)].filter(e => !e.closest('.scroller, .unseen, svg, select')"
        " && e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 90))",
        part,
    )
    assert beyond == []


def lines_drawn(page, figure):
    return page.locator(f"#figure-{figure} .xy .scatterlayer .trace .lines path.js-line").count()


def plotted(page, figure):
    return page.evaluate(
        "n => document.querySelector(`#figure-${n} .plot`).data.map(t => ({x: [...t.x], y: [...t.y]}))", figure
    )


def downloaded(page, button):
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    return Path(download.value.path()).read_text("utf-8")


def violations(page, at_least: int, only_rule: str = "") -> list[tuple[str, list[str]]]:
    """Return axe's accessibility violations as (rule, up to 3 HTML elements).

    at_least: fail if fewer rules pass. only_rule: the only rule to check; "" for all.
    """
    found = sorted((Path(__file__).parents[2] / "build").glob("axe-*.min.js"))
    if not found:
        pytest.skip("axe-core is not there: make axe")
    page.evaluate(found[-1].read_text("utf-8"))
    options = {"resultTypes": ["violations"], "preload": False} | ({"runOnly": [only_rule]} if only_rule else {})
    result = page.evaluate("options => axe.run(document, options)", options)
    assert len(result["passes"]) >= at_least
    return [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in result["violations"]]
