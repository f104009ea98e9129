"""Open the pages of a site in a browser."""

from contextlib import contextmanager

import browsing


@contextmanager
def opened(browser, site, path, **options):
    """Open a page of the site; at the end, fail if it loaded files from outside the site or raised an error."""
    with browsing.watched(browser, lambda url: url.startswith(f"{site.as_uri()}/"), **options) as (page, _):
        page.goto(f"{site.as_uri()}/{path}")
        settle(page)
        yield page


def settle(page):
    # A function: the policy of the pages refuses an expression, which Playwright evaluates again at each frame.
    page.wait_for_function("() => !document.scripts.length || document.documentElement.dataset.ready === 'yes'")
