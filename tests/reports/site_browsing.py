"""Pages of a site in a browser, and what the one of two runs says."""

from contextlib import contextmanager

import browsing

COMPARED = """() => {
  const all = (host, selector) => [...(host?.querySelectorAll(selector) ?? [])];
  const parts = new Map(all(document, '#found section').map((each) => [each.firstChild.textContent, each]));
  const items = (title) => all(parts.get(title), 'li').map((each) => each.textContent);
  const cells = (row) => [...row.cells].filter((cell) => !cell.querySelector('svg')).map((cell) => cell.textContent);
  return {
    verdict: document.querySelector('.verdict')?.textContent,
    said: document.querySelector('#said').textContent,
    rows: all(parts.get('Cases'), 'tbody tr').map(cells),
    sides: all(parts.get('The two runs'), 'tbody tr').map((row) => cells(row).slice(1)),
    differs: items('What differs'),
    missing: items('Not compared'),
  };
}"""


@contextmanager
def opened(browser, site, path, **options):
    """A page of the site, and a check that it asked for nothing but the site's own files and erred nowhere."""
    with browsing.watched(browser, lambda url: url.startswith(f"{site.as_uri()}/"), **options) as (page, _):
        page.goto(f"{site.as_uri()}/{path}")
        settle(page)
        yield page


def settle(page):
    page.wait_for_selector("html[data-ready=yes]", state="attached")
