"""Can a page be read and used by keyboard, by screen reader, without motion? Of a run on a CPU and of one on an H100."""

from pathlib import Path

import browsing
import pytest
import synthetic_records as synthetic

from harness.case import Case
from reports import write_report

ROOT = Path(__file__).parents[2]
H100 = ROOT / "reports" / "results" / "h100-2026-11-21"
# Rules of WCAG 2.2 A and AA, and the best practices of axe.
AXE_OPTIONS = {"resultTypes": ["violations"]}
FIGURE_STOPS = """number => [...document.querySelectorAll(`#figure-${number} :is(a, button, input, select, summary, [tabindex])`)]
  .filter(e => e.tabIndex >= 0 && e.checkVisibility({checkVisibilityCSS: true})).length"""


@pytest.fixture(scope="module")
def browser():
    with browsing.browser() as opened:
        yield opened


def on_a_cpu():
    """The run of `ttt-bench run quick` on a CPU, with cases that others disturbed, and one that failed."""
    loaded = {"cpu": {"model": "Xeon", "cores": 2, "others_share": 0.5, "idle_share": 0.0}}
    place = {"device": "Xeon", "device_kind": "cpu", "commit": "c" * 40, "dirty": False}
    cases = [
        Case(system, "torch", "tiny", phase, batch, context, dtype="float32")
        for system in ("ttt-linear", "ttt-mlp", "transformer", "mamba")
        for phase, batch, context in [("forward", 2, 64 << n) for n in range(5)]
        + [("generate", 1 << n, 128) for n in range(5)]
    ]
    records = [synthetic.ok(case, 3.0, count=40, environment=place | loaded) for case in cases[:-1]]
    return synthetic.of_suite("quick", *records, synthetic.lost(cases[-1], "failed", "it broke"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    write_report(H100, folder / "h100.html")
    write_report(on_a_cpu().run(folder / "run"), folder / "cpu.html")
    return {name: folder / f"{name}.html" for name in ("h100", "cpu")}


def axe():
    found = sorted((ROOT / "build").glob("axe-*.min.js"))
    if not found:
        pytest.skip("axe-core is not there: make axe")
    return found[-1].read_text("utf-8")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_axe_finds_no_violation(browser, pages, name, theme):
    with browsing.opened(browser, pages[name], color_scheme=theme) as (page, _):
        page.evaluate("for (const each of document.querySelectorAll('figure:nth-of-type(-n+2) details, .chooser')) each.open = true")
        page.wait_for_timeout(200)
        page.evaluate(axe())
        found = page.evaluate("options => axe.run(document, options)", AXE_OPTIONS)
        assert len(found["violations"]) == 0, [
            (each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
            for each in found["violations"]
        ]
