"""What does a reader take along: links that say what is shown, pictures and numbers, paper, a citation?"""

import csv
import io
import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import browsing
import pytest
import synthetic_records as synthetic

from harness.schema.case import Case
from reports.page.citation import citation

STATE = """number => {
  const figure = document.querySelector(`#figure-${number}`);
  const { xaxis, yaxis } = figure.querySelector(".plot")._fullLayout;
  const pressed = [...figure.querySelectorAll(".legend li:not([hidden]) button[aria-pressed=true] span")];
  const open = figure.querySelector(".numbers").open;
  return { x: xaxis.type, y: yaxis.type, lines: pressed.map(e => e.textContent), open };
}"""


def two_backends():
    """Figure 15's forward of three lines, one of them another backend's."""
    pairs = (
        ("ttt-linear", "thunderkittens"),
        ("mamba", "mamba-ssm"),
        ("transformer", "torch"),
        ("transformer", "vllm"),
    )
    cases = [Case(*pair, "1.3b", "forward", 16, context) for pair in pairs for context in (2048, 8192)]
    return synthetic.of_suite("fig15-forward", *(synthetic.ok(case, case.context / 500) for case in cases))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return browsing.save(two_backends(), tmp_path_factory.mktemp("saved"), "page")


def arrange(page):
    browsing.open_options(page)
    page.get_by_role("button", name="More backends (1)").click()
    page.get_by_role("button", name="Mamba · mamba-ssm", exact=True).click()
    page.get_by_label("log x").uncheck()
    page.get_by_label("log y").check()
    page.locator("#figure-0 .numbers > summary").click()
    browsing.eventually(page, lambda: "numbers=open" in page.url, True)


def test_a_link_brings_a_figure_back_as_it_was_seen(browser, saved):
    with browsing.opened(browser, saved) as (page, _):
        opened_with = page.evaluate(STATE, 0)
        assert "#" not in page.url
        arrange(page)
        address, state = page.url, page.evaluate(STATE, 0)
        browsing.open_options(page)
        assert page.get_by_role("link", name="Link to this view").evaluate("e => e.href") == address
        assert "#fig15-forward?lines=" in address
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector("html[data-ready]", state="attached")
        assert page.evaluate(STATE, 0) == state
        assert state["lines"] == ["TTT-Linear · ThunderKittens", "Transformer · vLLM", "Transformer · PyTorch"]
        assert (state["x"], state["y"], state["open"]) == ("linear", "log", True)
        assert opened_with != state
        page.evaluate("location.hash = '#fig15-forward?relative=mamba-mamba-ssm'")
        browsing.eventually(page, lambda: browsing.plotted(page, 0)[2]["y"], [1, 1])
        assert page.evaluate(STATE, 0)["x"] == "log"


@pytest.mark.parametrize(
    "part", ["#nothing", "#fig15-forward?lines=gone&y=&relative=gone", "#fig15-forward?%ff", "#%E0%A4%A", "#a?b?c"]
)
def test_a_link_to_what_is_not_there_is_a_page_all_the_same(browser, saved, part):
    with browsing.opened(browser, saved, part) as (page, _):
        assert page.evaluate(STATE, 0)["y"] == "linear"


def test_only_this_shows_a_line_alone_and_brings_the_others_back(browser, saved):
    with browsing.opened(browser, saved) as (page, _):
        page.get_by_role("button", name="Only Mamba · mamba-ssm").click()
        assert page.evaluate(STATE, 0)["lines"] == ["Mamba · mamba-ssm"]
        assert browsing.lines_drawn(page, 0) == 1
        page.get_by_role("button", name="Only Mamba · mamba-ssm").click()
        assert browsing.lines_drawn(page, 0) == 3


def file_of(page, kind, title="Forward latency per token", name="fig15-forward"):
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save {kind} of {title}").click()
    assert download.value.suggested_filename == f"{name}.{kind.lower()}"
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_saved_picture_is_white_and_says_what_it_shows(browser, saved, theme):
    with browsing.opened(browser, saved, color_scheme=theme) as (page, _):
        browsing.open_options(page)
        text = file_of(page, "SVG").decode()
        words = " ".join(re.findall(r">([^<>]+)<", text))
        for said in (
            "Forward latency per token",
            "Figure 15, left of arXiv 2407.04620",
            "Batch 16",
            "NVIDIA H100 80GB HBM3",
            "2026-03-0",
            "commit 3f2a91c0",
            "x logarithmic, y linear from 0",
            "TTT-Linear · ThunderKittens",
        ):
            assert said in words, said
        assert "background: rgb(255, 255, 255)" in text or "fill: rgb(255, 255, 255)" in text
        assert "rgb(2, 51, 147)" in text  # the first tone of the light theme
        assert corner(file_of(page, "PNG")) == (255, 255, 255)


def test_the_legend_of_a_saved_picture_is_below_the_plot_however_many_lines_it_has(browser, tmp_path):
    case = Case("ttt-linear", "triton-dual", "1.3b", "generate", 1, 1, timing="graph", options=(("scope", "layer"),))
    records = [
        synthetic.ok(replace(case, backend=backend, batch=batch, state_dtype=state), 0.1 * batch)
        for backend in ("triton-dual", "triton-primal")
        for state in ("float32-planes", "float32", "bfloat16", "float16", "float8", "int8", "int4")
        for batch in (1, 64, 4096)
    ]
    with browsing.opened(browser, browsing.save(synthetic.of_suite("kernel-generate", *records), tmp_path, "page")) as (
        page,
        _,
    ):
        browsing.open_options(page)
        text = file_of(page, "SVG", "One layer's step of generate", "kernel-generate-ttt-linear").decode()
        page.set_content(text)
        box = "selector => document.querySelector(selector).getBoundingClientRect()"
        assert page.evaluate(box, ".legend")["top"] >= page.evaluate(box, ".xtitle")["bottom"]
        assert page.evaluate(box, ".xtitle")["top"] >= page.evaluate(box, ".scatterlayer")["bottom"]


def test_the_legend_of_a_saved_picture_has_room_for_a_dash_twice(browser, saved):
    with browsing.opened(browser, saved) as (page, _):
        browsing.open_options(page)
        page.set_content(file_of(page, "SVG").decode())
        width = "all => all.map((each) => each.getBBox().width)"
        assert page.locator(".legend .legendlines path").evaluate_all(width) == [60] * 3
        boxes = "all => all.map((each) => each.getBoundingClientRect().right)"
        assert max(page.locator(".legend text").evaluate_all(boxes)) <= 900


def corner(png):
    """The first pixel of a PNG of 8 bits a channel."""
    assert png.startswith(b"\x89PNG")
    width, height, depth = struct.unpack(">IIB", png[16:25])
    assert (width, depth) == (1800, 8)
    assert height > 800
    at, data = 8, b""
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return tuple(zlib.decompress(data)[1:4])  # after the row's filter, which leaves the first pixel as it is


def test_a_saved_csv_has_the_points_with_where_they_come_from(browser, saved):
    table = two_backends().table
    with browsing.opened(browser, saved) as (page, _):
        browsing.open_options(page)
        rows = list(csv.DictReader(io.StringIO(file_of(page, "CSV").decode())))
    assert len(rows) == 6  # of the lines shown
    assert {row["line"] for row in rows} == {"TTT-Linear · ThunderKittens", "Mamba · mamba-ssm", "Transformer · vLLM"}
    first = table.loc[0]
    assert float(rows[0]["value"]) == pytest.approx(first["us_per_token"], rel=1e-5)
    assert rows[0]["quantity"] == "Latency per token (µs)"
    assert float(rows[0]["low"]) < float(rows[0]["value"]) < float(rows[0]["high"])
    for name in ("device", "commit", "started_at"):
        assert rows[0][name] == first[name]
    assert (rows[0]["figure"], rows[0]["batch"], rows[1]["context"]) == ("Forward latency per token", "16", "8192")


def test_paper_is_white_and_keeps_a_plot_with_its_legend(browser, saved):
    with browsing.opened(browser, saved, color_scheme="dark") as (page, _):
        page.get_by_role("button", name="Light theme").click()
        page.get_by_role("button", name="Dark theme").click()
        page.emulate_media(media="print", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        look = page.evaluate("""() => ({
          paper: getComputedStyle(document.body).backgroundColor,
          line: document.querySelector("#figure-0 .plot").data[0].line.color,
          together: getComputedStyle(document.querySelector("#figure-0")).breakInside,
          legend: document.querySelector("#figure-0 .legend").checkVisibility(),
          options: document.querySelector("#figure-0 .options").checkVisibility(),
          width: document.querySelector("#figure-0 .main-svg").getBoundingClientRect().width,
        })""")
        assert look == {
            "paper": "rgb(255, 255, 255)",
            "line": "rgb(2, 51, 147)",
            "together": "avoid",
            "legend": True,
            "options": False,
            "width": 660,
        }
        page.emulate_media(media="screen", color_scheme="dark")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.wait_for_timeout(200)
        assert page.evaluate("document.querySelector('#figure-0 .plot').data[0].line.color") == "rgb(71, 193, 237)"
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_paper_has_all_rows_of_a_table_under_headers_that_each_page_repeats(browser, paper_page):
    rows = "document.querySelectorAll('#results-table tbody tr').length"
    with browsing.opened(browser, paper_page) as (page, _):
        count = page.evaluate("page.count")
        page.locator("#results-table").get_by_role("button", name="Next").click()
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(rows) == count > 100
        assert page.locator("#results-table .count").inner_text() == f"Rows 1–{count} of {count}"
        # Chromium leaves the box of a button out of all but the first header, and a text without one in.
        assert page.evaluate("getComputedStyle(document.querySelector('thead button')).display") == "contents"
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert page.locator("#results-table .count").inner_text() == f"Rows 101–200 of {count}"


def test_a_link_shows_its_figure_before_the_others_are_drawn(browser, paper_page):
    drawn = """() => {
      window.order = [];
      const draw = Figure.prototype.draw;
      Figure.prototype.draw = function (...all) {
        order.push([this.data.id, Math.round(scrollY) > 0]);
        return draw.apply(this, all);
      };
    }"""
    with browsing.opened(browser, paper_page) as (page, _):
        figures = page.evaluate("page.figures.map(({ id }) => id)")
        page.evaluate(drawn)
        page.evaluate("scrollTo(0, 0)")
        page.evaluate("id => history.replaceState(null, '', `#${id}`)", figures[-1])
        page.evaluate("startLinks(startFigures())")
        order = page.evaluate("order")
        assert [order[0][0], *sorted(each for each, _ in order[1:])] == [figures[-1], *sorted(figures[:-1])]
        assert all(scrolled for _, scrolled in order)
    with browsing.opened(browser, paper_page, f"#{figures[-1]}") as (page, _):
        top = page.locator("figure").last.evaluate("e => e.getBoundingClientRect().top")
        assert top == pytest.approx(64, abs=4)  # below the bar, whatever was drawn above


def test_a_theme_that_was_chosen_is_there_again(browser, saved):
    with browsing.opened(browser, saved) as (page, _):
        for chosen, other in (("dark", "Light theme"), ("light", "Dark theme")):
            page.get_by_role("button", name=f"{chosen} theme").click()
            page.reload()
            page.wait_for_selector("html[data-ready]", state="attached")
            page.get_by_role("button", name=other).wait_for()
        assert page.evaluate("localStorage.length") == 0  # the system's own is not kept
    refusing = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no') } })"
    with browsing.opened(browser, saved) as (page, _):
        page.evaluate(refusing)
        page.get_by_role("button", name="Dark theme").click()
        page.get_by_role("button", name="Light theme").click()


def test_a_run_is_cited_by_project_version_commit_device_and_date():
    table = two_backends().table
    found = citation("A & B_1", table)
    assert found.startswith("@misc{ttt-bench-2026-03-0")
    assert "{A \\& B\\_1}: a run of ttt-bench" in found
    assert "Measured on NVIDIA H100 80GB HBM3, 2026-03-0" in found
    assert "commit 3f2a91c04d, 8 of 8 cases" in found
    assert re.search(r"version = \{\d", found)
    assert "year    = {2026}" in found


def test_a_strangers_words_stay_inside_of_a_citation():
    made = synthetic.hostile()
    place = {"device": "a}, evil = {\\input{x}\n% $", "commit": "}", "device_kind": "cuda"}
    record = synthetic.ok(made.records[0].case, 1.0, environment=place)
    found = citation("T", synthetic.of_suite("quick", record).table)
    bare = re.sub(r"\\textbackslash\{\}|\\[{}%$]", "", found)
    assert bare.count("{") == bare.count("}")
    assert "%" not in bare
    assert "\\input" not in bare
    assert len(found.splitlines()) == 7


def test_the_citation_is_copied(browser, saved):
    with browsing.opened(browser, saved, permissions=("clipboard-read", "clipboard-write")) as (page, _):
        page.get_by_role("button", name="Copy the BibTeX entry").click()
        page.get_by_text("Copied.").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == page.locator("#citation").inner_text()
