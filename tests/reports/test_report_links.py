"""Links lead to a page's figures, which can be saved as pictures and printed as PDF."""

import re
from pathlib import Path

import browsing
import pytest
import synthetic_records as synthetic

from harness.schema.case import Case

STATE = """number => {
  const figure = document.querySelector(`#figure-${number}`);
  const { xaxis, yaxis } = figure.querySelector(".plot")._fullLayout;
  const pressed = [...figure.querySelectorAll(".legend li:not([hidden]) button[aria-pressed=true] span")];
  return { x: xaxis.type, y: yaxis.type, lines: pressed.map(e => e.textContent) };
}"""


# Right below the bar of the page.
IS_AT_TOP = "e => Math.abs(e.getBoundingClientRect().top - 64) < 4"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    pairs = (
        ("ttt-linear", "thunderkittens"),
        ("mamba", "mamba-ssm"),
        ("transformer", "torch"),
        ("transformer", "vllm"),
    )
    cases = [Case(*pair, "1.3b", "forward", 16, context) for pair in pairs for context in (2048, 8192)]
    made = synthetic.of_suite("fig15-forward", *(synthetic.ok(case, case.context / 500) for case in cases))
    return browsing.save(made, tmp_path_factory.mktemp("saved"), "page")


def test_hidden_lines_can_be_shown(browser, saved):
    with browsing.opened(browser, saved) as (page, _):
        page.get_by_role("button", name="More lines (1)").click()
        browsing.eventually(page, lambda: len(page.evaluate(STATE, 0)["lines"]), 4)
        page.get_by_role("button", name="Fewer lines").click()
        browsing.eventually(page, lambda: browsing.lines_drawn(page, 0), 3)
        page.get_by_role("button", name="Mamba · mamba-ssm", exact=True).click()
        page.get_by_label("log x").uncheck()
        page.get_by_label("log y").check()
        lines = ["TTT-Linear · ThunderKittens", "Transformer · vLLM"]
        browsing.eventually(page, lambda: page.evaluate(STATE, 0), {"x": "linear", "y": "log", "lines": lines})


@pytest.mark.parametrize("part", ["#nothing", "#fig15-forward?%ff", "#%E0%A4%A", "#a?b?c"])
def test_a_link_with_unknown_parts_opens_the_page(browser, saved, part):
    with browsing.opened(browser, saved, part) as (page, _):
        assert page.evaluate(STATE, 0)["y"] == "linear"


def test_the_links_of_a_figure_lead_to_it(browser, tmp_path):
    case = Case("ttt-linear", "torch", "1.3b", "forward", 16, 2048)
    suites = ("first", "it's 1/2 (ü)", "last")
    made = synthetic.made((suite, synthetic.ok(case, 4.0)) for suite in suites)
    path = browsing.save(made, tmp_path, "page")
    with browsing.opened(browser, path) as (page, _):
        assert len(page.evaluate("page.figures.map(({ id }) => id)")) == 3
        figure = page.locator("figure").nth(1)
        figure.get_by_role("link", name="Link to this figure").click()
        browsing.eventually(page, lambda: figure.get_attribute("class"), "linked")
        address = page.url
        browsing.open_all(page, "#index")
        page.locator("#index a").nth(2).click()
        browsing.eventually(page, lambda: figure.get_attribute("class"), "")
        page.locator("#index a").nth(1).click()
        browsing.eventually(page, lambda: figure.get_attribute("class"), "linked")
        assert page.url == address
        page.evaluate("scrollTo(0, 0)")
        page.locator("#index a").nth(1).click()
        browsing.eventually(page, lambda: figure.evaluate(IS_AT_TOP), True)


def file_of(page, kind):
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save {kind} of Forward latency per token").click()
    assert download.value.suggested_filename == f"fig15-forward.{kind.lower()}"
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize(("theme", "inches"), [("light", "3.3"), ("dark", "7")])
def test_a_picture_for_a_paper_is_white_without_title_and_caption(browser, saved, theme, inches):
    with browsing.opened(browser, saved, color_scheme=theme) as (page, _):
        page.get_by_label("width of downloads").select_option(inches)
        text = file_of(page, "SVG").decode()
        words = re.findall(r">([^<>]+)<", text)
        assert {"TTT-Linear", "Latency per token (µs)"} <= {word.split(" · ")[0].strip() for word in words}
        assert not [word for word in words if "fastest" in word or "Batch 16" in word]
        assert f'width="{inches}in"' in text
        assert "background: rgb(255, 255, 255)" in text or "fill: rgb(255, 255, 255)" in text
        assert "rgb(2, 51, 147)" in text  # the first tone of the light theme


def test_a_figure_printed_alone_is_a_pdf_of_its_size(browser, saved):
    with browsing.opened(browser, saved) as (page, _):
        page.evaluate("showAlone([figures[0]], 3.3)")
        pdf = page.pdf(prefer_css_page_size=True)
    [(width, height)] = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", pdf)
    assert float(width) == pytest.approx(3.3 * 72, abs=1)
    assert 100 < float(height) < 250


def test_figures_are_drawn_near_the_screen(browser, paper_page):
    drawn = "() => figures.filter((figure) => figure.isDrawn).map((figure) => figure.data.id)"
    with browsing.opened(browser, paper_page, draw_all=False) as (page, _):
        ids = page.evaluate("page.figures.map(({ id }) => id)")
        first = page.evaluate(drawn)
        assert first[0] == ids[0]
        assert ids[-1] not in first
        page.locator("figure").last.scroll_into_view_if_needed()
        browsing.eventually(page, lambda: ids[-1] in page.evaluate(drawn), True)
    with browsing.opened(browser, paper_page, f"#{ids[-1]}", draw_all=False) as (page, _):
        assert page.evaluate(drawn)[-1] == ids[-1]
        assert ids[0] not in page.evaluate(drawn)
        assert page.locator("figure.linked").evaluate_all("all => all.map((each) => each.id)") == [
            f"figure-{len(ids) - 1}"
        ]
        top = page.locator("figure").last.evaluate("e => e.getBoundingClientRect().top")
        assert top == pytest.approx(64, abs=4)  # below the bar
