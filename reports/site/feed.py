"""The runs of a site as an Atom feed (RFC 4287)."""

import uuid
from collections.abc import Iterable
from urllib.parse import urlsplit
from xml.etree import ElementTree

from harness.schema.record import RecordError
from reports.site.entry import Entry

_ATOM = "http://www.w3.org/2005/Atom"
_MOST = 50  # entries, the newest


def checked_url(url: str) -> str:
    """The address of a site, ending in a slash; RecordError where it is none."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.fragment
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or set(url) & set(" <>\"'\\`{}|^"):
        raise RecordError(f"--url {url}: must be where the site will be, such as https://example.org/bench/")
    return url if url.endswith("/") else f"{url}/"


def feed(entries: Iterable[Entry], url: str) -> str:
    """The newest runs of the site at `url`; those that say no date are left out.

    An entry's id follows from the run's alone, so that it stays when the site moves.
    """
    dated = sorted((entry for entry in entries if entry.updated), key=lambda entry: entry.updated, reverse=True)[:_MOST]
    root = ElementTree.Element("feed", xmlns=_ATOM)
    _add(root, "id", f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, url)}")
    _add(root, "title", "Runs of ttt-bench")
    _add(root, "updated", dated[0].updated if dated else "1970-01-01T00:00:00+00:00")
    ElementTree.SubElement(root, "link", rel="self", type="application/atom+xml", href=f"{url}feed.xml")
    ElementTree.SubElement(root, "link", rel="alternate", type="text/html", href=url)
    _add(ElementTree.SubElement(root, "author"), "name", "ttt-bench")
    for entry in dated:
        _add_entry(root, entry, url)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_entry(root: ElementTree.Element, entry: Entry, url: str) -> None:
    item = ElementTree.SubElement(root, "entry")
    _add(item, "id", f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'ttt-bench run {entry.id}')}")
    _add(item, "title", entry.name)
    _add(item, "updated", entry.updated)
    ElementTree.SubElement(item, "link", rel="alternate", type="text/html", href=f"{url}{entry.page}")
    for words, path in entry.downloads:
        ElementTree.SubElement(item, "link", rel="enclosure", title=words, href=f"{url}{path}")
    systems = ", ".join(label for _, label in entry.systems)
    places = " and ".join(entry.devices) or "device not recorded"
    _add(item, "summary", f"{systems} on {places}: {entry.measured} of {entry.cases} cases with a result.")


def _add(parent: ElementTree.Element, tag: str, text: str) -> None:
    ElementTree.SubElement(parent, tag).text = text
