"""How does a figure or a page become a picture, such as the one in the README?

`python -m reports.picture report.html picture.png --figures fig15` needs Chromium and playwright (extra dev).
"""

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM_ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
# Without controls, which do nothing in a picture, and with a margin of the page's colour.
PICTURE_STYLE = ".controls, details, .top { display: none !important } .suite { padding: 0 24px } figure { border: 0 }"
RESIZE_MS = 500  # for figures to follow a change of their width


def chromium_path() -> str:
    """Where Chromium or Chrome is; FileNotFoundError says what to install."""
    for name in CHROMIUM_NAMES:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(f"no Chromium on the PATH: install one of {', '.join(CHROMIUM_NAMES)}")


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless browser (playwright's) that makes no connections of its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(CHROMIUM_ARGS))
        try:
            yield browser
        finally:
            browser.close()


def take(
    browser: Any,
    report: Path,
    out: Path,
    suite: str = "",
    theme: str = "light",
    width: int = 1240,
    y_log: bool = False,
) -> None:
    """Write a PNG of the figures of `suite`, or of the whole page; ValueError if the page has no such figures."""
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=theme, device_scale_factor=2, offline=True
    )
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    if y_log:
        page.evaluate("for (const box of document.querySelectorAll('[data-role=y-log]')) if (!box.checked) box.click()")
    if not suite:
        page.screenshot(path=out, full_page=True)
        return
    section = page.get_by_role("region", name=f"Figures of {suite}", exact=True)
    if not section.count():
        raise ValueError(f"--figures {suite}: the page has no figures of that name")
    page.add_style_tag(content=PICTURE_STYLE)
    page.evaluate("dispatchEvent(new Event('resize'))")  # the style may put the figures below each other
    page.wait_for_timeout(RESIZE_MS)
    section.screenshot(path=out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a PNG of a report.")
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--figures", default="", metavar="SUITE", help="only these figures, such as fig15")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    parser.add_argument("--log-y", action="store_true", help="logarithmic latencies")
    parser.add_argument("--width", type=int, default=1240, help="of the page, in CSS pixels")
    values = parser.parse_args()
    try:
        with chromium() as browser:
            take(browser, values.report, values.out, values.figures, values.theme, values.width, values.log_y)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
