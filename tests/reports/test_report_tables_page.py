"""A page's tables round medians and intervals by one rule, show few columns at first, and name systems consistently."""

from dataclasses import replace

import browsing
import pytest
import synthetic_records as synthetic

from harness.schema.case import Case
from reports.page.data import page_data

PAPER = synthetic.paper()
TABLE = PAPER.table
FIGURES = synthetic.paper_figures()
FIG20 = next(number for number, figure in enumerate(FIGURES) if figure.id == "fig20-throughput-generate")


@pytest.fixture(scope="module")
def shared(browser, paper_page):
    with browsing.opened(browser, paper_page, viewport={"width": 1400, "height": 900}) as (page, errors):
        yield page, errors


def test_a_median_and_its_interval_are_rounded_alike(page):
    shown = page.evaluate("[140915, 140871.4, 9999.96, 12.34567, 4096, 140958.6].map(shown)")
    assert shown == ["140915", "140871", "10000", "12.35", "4096", "140959"]


def test_the_long_table_opens_short_and_shows_what_is_chosen(page):
    heads = page.locator("#results-table th")
    short = heads.evaluate_all("all => all.map(e => e.dataset.column)")
    assert short == [
        "system", "backend", "phase", "batch", "context", "status", "latency_ms", "us_per_token",
        "state_dtype", "l2", "mini_batch", "part", "scope", "form",
    ]  # fmt: skip
    page.locator("#results-table th[data-column=latency_ms] button").click()
    page.locator(".chooser > summary").click()
    chooser = page.locator("#columns")
    chooser.get_by_label("Peak memory (GB)").check()
    chooser.get_by_label("Phase").uncheck()
    shown = heads.evaluate_all("all => all.map(e => e.dataset.column)")
    assert "peak_memory_gb" in shown
    assert "phase" not in shown
    sorted_by = page.locator("#results-table th[aria-sort=ascending]")
    assert sorted_by.get_attribute("data-column") == "latency_ms"
    assert page.locator("#results-table tbody tr").first.locator("td").count() == len(shown)
    chooser.get_by_label("Peak memory (GB)").uncheck()
    chooser.get_by_label("Phase").check()


def test_systems_and_backends_have_one_name_everywhere(page):
    cells = set(page.locator("#results-table tbody td:nth-child(2)").all_inner_texts())
    assert {"ThunderKittens", "vLLM"} <= cells
    words = page.evaluate("document.querySelector('main').innerText")
    for name in ("thunderkittens", "triton-dual"):
        assert name not in words
    assert "Mamba" in page.locator("#failures tbody").inner_text()
    assert "mamba (" not in words


def test_rows_of_the_short_table_differ():
    case = Case("ttt-linear", "torch", "1.3b", "forward", 16, 2048, dtype="bfloat16", state_dtype="float32")
    options = [(), (("scope", "layer"),), (("backbone", "transformer"), ("mini_batch", 32)), (("form", "primal"),)]
    cases = [replace(case, options=each) for each in options]
    cases += [replace(case, options=(("block_size", size),)) for size in (16, 32)]
    cases += [replace(case, dtype="float32"), replace(case, l2="cold"), replace(case, state_dtype="bfloat16")]
    made = synthetic.of_suite("quick", *(synthetic.ok(each, 1.0) for each in cases))
    data = page_data(made.table, made.catalogue, [], {})
    columns = {column["name"]: column for column in data["columns"]}
    rows = [
        tuple(
            each["values"][each["codes"][row]] if "codes" in each else each["numbers"][row]
            for each in (columns[name] for name in data["short"] if name not in ("latency_ms", "us_per_token"))
        )
        for row in range(len(cases))
    ]
    assert len(set(rows)) == len(cases)
