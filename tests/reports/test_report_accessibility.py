"""Pages can be used by keyboard and by screen reader."""

import re
from pathlib import Path

import browsing
import pytest
import synthetic_records as synthetic

from harness.schema.case import Case
from reports.publish import write_report

CHECKED = {"light": (25,), "dark": (1, "color-contrast")}  # fewest passed rules, and the only rule to check


def h100(folder):
    return Path(__file__).parents[2] / "reports" / "results" / "h100"


def on_a_cpu(folder):
    loaded = {"cpu": {"model": "Xeon", "cores": 2, "others_share": 0.5, "idle_share": 0.0}}
    machine = {"device": "Xeon", "device_kind": "cpu", "commit": "c" * 40, "dirty": False}
    cases = [
        Case(system, "torch", "tiny", phase, batch, context, dtype="float32")
        for system in ("ttt-linear", "ttt-mlp", "transformer", "mamba")
        for phase, batch, context in [("forward", 2, 64 << n) for n in range(5)]
        + [("generate", 1 << n, 128) for n in range(5)]
    ]
    records = [synthetic.ok(case, 3.0, count=40, environment=machine | loaded) for case in cases[:-1]]
    return synthetic.of_suite("quick", *records, synthetic.lost(cases[-1], "failed", "it broke")).run(folder / "run")


@pytest.mark.parametrize(("run", "theme"), [(h100, "light"), (on_a_cpu, "dark")])
def test_axe_finds_no_violation(browser, page_folder, tmp_path, run, theme):
    write_report(run(tmp_path), page_folder / "page.html")
    with browsing.opened(browser, page_folder / "page.html", color_scheme=theme) as (page, _):
        browsing.open_all(page, "#figure-0 details, .chooser")
        assert not browsing.violations(page, *CHECKED[theme])


@pytest.fixture(scope="module")
def paper(browser, paper_page):
    with browsing.opened(browser, paper_page, draw_all=False) as (page, _):
        page.evaluate("drawAll(figures)")
        yield page


def test_keyboard_and_tap_describe_points(paper):
    readout = paper.locator("#figure-0 .readout")
    paper.locator("#figure-0 .plot").focus()
    paper.keyboard.press("ArrowRight")
    assert readout.inner_text().startswith(
        "TTT-Linear · ThunderKittens · Context length (tokens): 1k · Latency per token"
    )
    assert "] · 30 samples" in readout.inner_text()
    paper.locator("#figure-0 .hoverlayer", has_text="TTT-Linear").wait_for()  # Plotly draws it later
    for _ in range(6):
        paper.keyboard.press("ArrowRight")
    assert readout.inner_text().startswith("TTT-MLP · ThunderKittens · Context length (tokens): 1k")
    paper.keyboard.press("ArrowLeft")
    assert readout.inner_text().startswith("TTT-Linear · ThunderKittens · Context length (tokens): 32k")
    paper.locator("#figure-0 .plot").scroll_into_view_if_needed()
    point = paper.locator("#figure-0 .xy .points path").nth(7)
    point.hover(force=True)
    # Plotly looks for a point at most every 50 ms: a click right after a key is on the key's point.
    paper.locator("#figure-0 .hoverlayer", has_text="TTT-MLP").wait_for()
    point.click(force=True)
    paper.locator("#figure-0 .readout", has_text=re.compile("^TTT-MLP")).wait_for()


def test_a_failed_point_is_described_by_keyboard_with_its_reason(paper):
    number = paper.evaluate("page.figures.findIndex(figure => figure.id === 'fig20-throughput-generate')")
    paper.locator(f"#figure-{number} .plot").focus()
    for _ in range(11):
        paper.keyboard.press("ArrowRight")
    text = paper.locator(f"#figure-{number} .readout").inner_text()
    assert "Batch size (sequences): 1k · oom: torch.OutOfMemoryError" in text
    label = paper.locator(f"#figure-{number} .hoverlayer")
    browsing.eventually(paper, lambda: "oom" in label.text_content(), True)


def test_a_figure_without_lines_describes_no_point(paper):
    figure = paper.locator("#figure-0")
    figure.locator(".plot").focus()
    paper.keyboard.press("ArrowRight")
    assert figure.locator(".readout").inner_text()
    chosen = figure.locator(".legend button[aria-pressed=true]")
    count = chosen.count()
    press = "all => all.forEach((each) => each.click())"
    chosen.evaluate_all(press)
    assert figure.locator(".annotation").all_text_contents() == ["No line is selected"]
    assert not figure.locator(".readout").is_visible()
    assert not figure.locator(".ytick text").count()
    figure.locator(".legend button[aria-pressed=false]").evaluate_all(press)
    assert browsing.lines_drawn(paper, 0) == count
    assert figure.locator(".ytick text").count()
