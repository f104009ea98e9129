"""Unusual runs give a page and tables without NaN; each axis has at least two ticks."""

import browsing
import pytest
import synthetic_records as synthetic

from harness.schema.case import Case
from reports.publish import write_report, write_table

BOTH_AXES = """() => [...document.querySelectorAll("figure")].map(figure => ["x", "y"].map(
  axis => figure.querySelectorAll(`.${axis}axislayer-above .${axis}tick`).length))"""

REDRAWN = "type => [...document.querySelectorAll('.plot')].every(plot => plot._fullLayout.yaxis.type === type)"


def forward(context=2048, system="ttt-linear", backend="thunderkittens", **fields):
    return Case(system, backend, "1.3b", "forward", 16, context, **fields)


def one_point():
    return synthetic.of_suite("fig15-forward", synthetic.ok(forward(), 3.0, spread=0.0))


def all_equal():
    contexts = (2048, 4096, 8192)
    pairs = (("ttt-linear", "thunderkittens"), ("transformer", "vllm"))
    records = [
        synthetic.ok(forward(at, *pair), at / 500, spread=0.0, started_at="2026-03-01T10:00:00+00:00")
        for pair in pairs
        for at in contexts
    ]
    return synthetic.of_suite("fig15-forward", *records)


def no_number():
    unknown = {"bytes": None, "flops": None, "sequences_at_once": None, "copy_gbs": None}
    records = [
        synthetic.ok(forward(2048), 3.0, tokens=0),
        synthetic.ok(forward(4096), 3.0, metrics=unknown),
        synthetic.ok(forward(8192), 2e-9, metrics={"flops": 1e300, "bytes": 0.0}),
        synthetic.ok(forward(16384), 1e11),
    ]
    return synthetic.of_suite("fig15-forward", *records)


def none_measured():
    cases = [forward(at, *pair) for pair in (("ttt-linear", "torch"), ("mamba", "mamba-ssm")) for at in (2048, 4096)]
    lost = [
        synthetic.lost(case, status, "why")
        for case, status in zip(cases, ("oom", "incorrect", "skipped", "killed"), strict=True)
    ]
    return synthetic.of_suite("fig15-forward", *lost)


def no_machine():
    record = synthetic.lost(forward(), "unstarted", "no worker")
    record.environment, record.started_at = {}, "yesterday"
    return synthetic.of_suite("fig15-forward", record)


STRANGE = {
    "one point": one_point,
    "all equal": all_equal,
    "no number": no_number,
    "none measured": none_measured,
    "no machine": no_machine,
}


@pytest.mark.parametrize("name", STRANGE)
def test_an_unusual_run_draws_a_page_and_a_table(browser, page_folder, tmp_path, capsys, name):
    made = STRANGE[name]()
    run = made.run(tmp_path / "run")
    write_report(run, page_folder / "page.html")
    with browsing.opened(browser, page_folder / "page.html") as (page, _):
        browsing.open_all(page, ".rows")
        for axis in ("x", "y"):
            for box in page.locator(f"[data-role={axis}-log]").all():
                box.set_checked(not box.is_checked())
        page.evaluate("drawAll(figures)")
        text = page.evaluate("document.querySelector('main').innerText")
        assert "NaN" not in text
        assert "Infinity" not in text
        assert "undefined" not in text
        assert page.locator("main :is(img, iframe, script, b[onclick])").count() == 0
    for fmt in ("text", "markdown", "csv", "json"):
        write_table(run, fmt, columns=("all",))
    assert "NaN" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["one point", "all equal", "paper"])
def test_every_axis_of_every_figure_has_two_ticks(browser, page_folder, paper_page, name):
    path = paper_page if name == "paper" else browsing.save(STRANGE[name](), page_folder, "page")
    with browsing.opened(browser, path) as (page, _):
        for log in (True, False):
            for axis in ("x", "y"):
                for box in page.locator(f"[data-role={axis}-log]").all():
                    box.set_checked(log)
            page.wait_for_function(REDRAWN, arg="log" if log else "linear")
            ticks = page.evaluate(BOTH_AXES)
            assert ticks
            assert min(min(each) for each in ticks) >= 2, (log, ticks)
