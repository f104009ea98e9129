"""Pictures (PNG, PDF) of a run's figures, by Chromium and playwright."""

import shutil
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.schema.record import RecordError

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_ARGS = ("--no-sandbox", "--disable-gpu")
# Hides the page's controls and adds a margin.
PICTURE_STYLE = ".more, details, .top { display: none !important } .suite { padding: 0 24px } figure { border: 0 }"
RESIZE_MS = 500  # time for figures to follow a change of their width
_FIRST_BYTES = {".png": (b"\x89png\r\n",), ".pdf": (b"%pdf",)}  # in lower case
_HEADER_END = 33  # bytes of a PNG's signature and its first chunk
_WIDTH = 1240  # CSS pixels of the page
_CSS_PPI, _PRINT_DPI = 96, 300  # CSS pixels and printed dots per inch


def write_picture(run_folder: Path, out: Path, figures: str = "", inches: float | None = None) -> None:
    """Write one suite's figures to a PNG, or to a PDF with one sheet per figure.

    figures: the suite's name, or "" for the page's first suite with figures.
    inches: width of each figure, drawn on white without title or caption, for a paper.
        With None (only for a PNG), the figures are drawn as on the page.
    Raises RecordError if the run is unreadable or lacks the figures, or if Chromium or playwright is missing.
    Also raises it if `out` exists and is not a file of the kind that its name ends with, .png or .pdf.
    """
    from reports.publish import refuse_overwriting, write_report

    kind = out.suffix.lower()
    refuse_overwriting(out, f"a {kind[1:].upper()}", _FIRST_BYTES[kind])
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report(run_folder, page)
        with chromium() as browser:
            if inches is None:
                picture = screenshot(browser, page, figures)
            else:
                picture = paper_picture(browser, page, figures, inches, kind == ".pdf")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(picture)


def chromium_path() -> str:
    """Return the path of Chromium or Chrome; RecordError if neither is on the PATH."""
    for name in CHROMIUM_NAMES:
        if path := shutil.which(name):
            return path
    raise RecordError(f"no Chromium on the PATH: install one of {', '.join(CHROMIUM_NAMES)}")


@contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """Yield a headless Chromium (by playwright).

    arguments: further options of Chromium. Raises RecordError if Chromium or playwright is missing.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise RecordError("playwright is not installed (pip install playwright)") from None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=[*CHROMIUM_ARGS, *arguments])
        try:
            yield browser
        finally:
            browser.close()


def screenshot(browser: Any, report: Path, suite: str = "") -> bytes:
    """Return a PNG of a suite's figures on the page `report`; its metadata has their titles and captions."""
    page = _opened(browser, report, _WIDTH, 2)
    section = _suite(page, suite)
    page.add_style_tag(content=PICTURE_STYLE)
    section.scroll_into_view_if_needed()
    page.evaluate("drawAll(figures)")  # the style may move figures below each other
    page.wait_for_timeout(RESIZE_MS)
    texts = section.locator("figure h3, figure .source, figcaption").all_inner_texts()
    return _described(section.screenshot(), " ".join(texts))


def _described(png: bytes, text: str) -> bytes:
    chunk = b"iTXtDescription\0\0\0\0\0" + " ".join(text.split()).encode()
    described = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return png[:_HEADER_END] + described + png[_HEADER_END:]


def paper_picture(browser: Any, report: Path, suite: str, inches: float, is_pdf: bool) -> bytes:
    """Return a suite's figures alone, `inches` wide: one PNG, or a PDF with a sheet per figure."""
    page = _opened(browser, report, round(inches * _CSS_PPI), _PRINT_DPI / _CSS_PPI)
    section = _suite(page, suite)
    numbers = section.locator("figure").evaluate_all("all => all.map(each => Number(each.dataset.figure))")
    page.evaluate("([numbers, inches]) => showAlone(numbers.map(n => figures[n]), inches)", [numbers, inches])
    return page.pdf(prefer_css_page_size=True) if is_pdf else page.locator("#alone").screenshot()


def _opened(browser: Any, report: Path, width: int, device_scale_factor: float) -> Any:
    viewport = {"width": width, "height": 900}
    page = browser.new_page(viewport=viewport, device_scale_factor=device_scale_factor, offline=True)
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    return page


def _suite(page: Any, suite: str) -> Any:
    sections = page.locator("section.suite")
    names = [name.removeprefix("Figures of ") for name in sections.evaluate_all("all => all.map(e => e.ariaLabel)")]
    name = suite.removesuffix("-forward").removesuffix("-generate")  # the page groups these suites
    if not names or (suite and name not in names):
        option = f"--figures {suite}: " if suite else ""
        problem = f"no such figures; there are {', '.join(names)}" if names else "no figures"
        raise RecordError(f"{option}the page has {problem}")
    return sections.nth(names.index(name) if suite else 0)
