"""A picture shows the requested suite and overwrites no other file; the README's picture is up to date."""

from pathlib import Path

import browsing
import pytest
import synthetic_records as synthetic

from harness.schema.record import RecordError
from reports.picture import screenshot, write_picture
from reports.publish import write_report

RESULTS = Path(__file__).parents[2] / "reports" / "results"


def test_picture_of_a_suite(browser, tmp_path):
    paper, three = synthetic.paper(), ("fig15-forward", "fig20-throughput", "fig8-minibatch")
    made = synthetic.made((suite, record) for suite in three for record in paper.of(suite))
    path = browsing.save(made, tmp_path, "three")
    first = screenshot(browser, path)
    assert first.startswith(b"\x89PNG")
    assert screenshot(browser, path, "fig8-minibatch") != first
    assert screenshot(browser, path, "fig15-forward") == screenshot(browser, path, "fig15")
    with pytest.raises(RecordError, match="--figures fig99: the page has no such figures; there are fig15, fig20"):
        screenshot(browser, path, "fig99")


def test_the_readmes_picture_has_todays_captions(browser, tmp_path):
    write_report(RESULTS / "h200-paper", tmp_path / "page.html")
    start = b"iTXtDescription\0\0\0\0\0"
    today = screenshot(browser, tmp_path / "page.html").split(start)[1].split(b"IDAT")[0][:-8]
    committed = (RESULTS / "fig15.png").read_bytes().split(start)[1].split(b"IDAT")[0][:-8]
    assert "Figure 15, left" in today.decode()
    assert committed.decode() == today.decode(), "draw it again: ttt-bench report reports/results/h200-paper --png ..."


def test_a_picture_never_overwrites_another_file(tmp_path):
    (tmp_path / "thesis.png").write_text("years of work")
    (tmp_path / "folder.png").mkdir()
    for out, message in (("thesis.png", "is not a PNG"), ("folder.png", "written: Is a directory")):
        with pytest.raises(RecordError, match=message):
            write_picture(tmp_path / "run", tmp_path / out)
    assert (tmp_path / "thesis.png").read_text() == "years of work"
