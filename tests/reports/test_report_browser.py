"""The page works in a browser, opened from a file and without a network."""

import csv
import io
import itertools
import json
from dataclasses import replace

import browsing
import pytest
import synthetic_records as synthetic
from browsing import PHONE

from harness.schema.case import Case
from reports.page.figures import figures
from reports.page.ranking import View

PAPER = synthetic.paper()
TABLE = PAPER.table
FIGURES = synthetic.paper_figures()
FIG15 = next(number for number, figure in enumerate(FIGURES) if figure.suite == "fig15-forward")
KERNEL = next(number for number, figure in enumerate(FIGURES) if figure.id == "kernel-forward-16-ttt-linear")
FIG20 = next(number for number, figure in enumerate(FIGURES) if figure.id == "fig20-throughput-generate")
ALONG = next(number for number, figure in enumerate(FIGURES) if figure.along)
REQUEST = next(number for number, figure in enumerate(FIGURES) if figure.suite == "prompt-then-128")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, paper_page):
    hostile = browsing.save(synthetic.hostile(), tmp_path_factory.mktemp("reports"), "hostile")
    return {"paper": paper_page, "hostile": hostile}


@pytest.fixture(scope="module")
def shared(browser, saved):
    with browsing.opened(browser, saved["paper"], viewport={"width": 1280, "height": 900}) as (page, errors):
        yield page, errors


def column(page, index):
    return page.locator(f"#results-table tbody tr td:nth-child({index})").all_inner_texts()


def test_every_figure_is_drawn_with_its_values(page):
    assert page.locator("figure").count() == len(FIGURES)
    for number, figure in enumerate(FIGURES):
        measured = [line for line in figure.lines if TABLE.loc[line.rows, "status"].eq("ok").any()]
        assert browsing.lines_drawn(page, number) == len(measured), figure.id
    first = FIGURES[FIG15].lines[0]
    assert browsing.plotted(page, FIG15)[0]["y"] == pytest.approx(list(TABLE.loc[first.rows, "us_per_token"]), rel=1e-5)


def test_only_the_drawn_kind_of_chart_is_started(page):
    assert page.evaluate("Object.keys(Plotly.PlotSchema.get().traces)") == ["scatter"]


@pytest.mark.parametrize(
    ("number", "value"), [(FIG15, "us_per_token"), (FIG20, "tokens_per_s"), (REQUEST, "time_to_first_token_ms")]
)
def test_bars_span_the_interval(page, number, value):
    row = TABLE.loc[FIGURES[number].lines[0].rows[0]]
    bar = page.evaluate(
        "n => { const {y, error_y: e} = document.querySelector(`#figure-${n} .plot`).data[0];"
        " return [y[0] - e.arrayminus[0], y[0] + e.array[0]]; }",
        number,
    )
    ends = [row[value] * row[f"latency_ms_{end}"] / row["latency_ms"] for end in ("low", "high")]
    if value == "tokens_per_s":
        ends = [row[value] * row["latency_ms"] / row[f"latency_ms_{end}"] for end in ("high", "low")]
    if number == REQUEST:
        ends = [row[f"{value}_{end}"] for end in ("low", "high")]
    assert bar == pytest.approx(ends, rel=1e-4)


def test_a_computed_x_has_round_ticks(page):
    assert browsing.lines_drawn(page, ALONG)
    texts = page.locator(f"#figure-{ALONG} .xtick text").all_text_contents()
    assert len(texts) > 1
    assert {text.rstrip("k0") for text in texts} <= {"1", "2", "5"}
    assert page.evaluate("roundValues(0.9, 2)") == [10, 20, 50, 100]


def test_cases_without_a_result_are_crosses(page):
    crosses = browsing.plotted(page, FIG20)[4:]
    assert [cross["x"] for cross in crosses] == [[1024]] * 4


def test_the_notes_of_a_point_are_in_the_readout(browser, page_folder):
    cases = [Case("transformer", "vllm", "1.3b", "generate", batch, 2048) for batch in (1, 2, 4)]
    records = [synthetic.ok(case, 1.0, metrics={"sequences_at_once": 1}) for case in cases]
    with browsing.opened(
        browser, browsing.save(synthetic.of_suite("fig20-throughput", *records), page_folder, "page")
    ) as (page, _):
        assert page.evaluate("document.querySelector('#figure-0 .plot').data[0].text") == ["", "†", "†"]
        page.locator("#figure-0").scroll_into_view_if_needed()
        page.locator("#figure-0 .xy .points path").last.hover(force=True)
        page.locator("#figure-0 .readout", has_text="1 of 4 sequences ran concurrently").wait_for()


def test_legend_hides_one_line_of_one_figure(page):
    entry = page.locator(f"#figure-{FIG15}").get_by_role("button", name="Mamba · mamba-ssm", exact=True)
    entry.click()
    assert entry.get_attribute("aria-pressed") == "false"
    assert browsing.lines_drawn(page, FIG15) == 3
    assert browsing.lines_drawn(page, FIG15 + 1) == 4
    entry.click()
    assert browsing.lines_drawn(page, FIG15) == 4


def test_hover_shows_median_and_interval_and_readout_shows_samples(page):
    page.locator(f"#figure-{FIG15}").scroll_into_view_if_needed()
    page.locator(f"#figure-{FIG15} .xy .points path").nth(3).hover(force=True)
    page.locator(f"#figure-{FIG15} .hoverlayer", has_text="TTT-Linear · ThunderKittens").wait_for()
    assert len(page.locator(f"#figure-{FIG15} .hoverlayer tspan.line").all()) == 3
    page.locator(f"#figure-{FIG15} .readout", has_text="30 samples").wait_for()


def test_the_lower_bound_is_drawn(page):
    *lines, bound = browsing.plotted(page, KERNEL)
    assert bound["y"] == pytest.approx([0.2048, 0.8192])
    figure = page.locator(f"#figure-{KERNEL}")
    assert figure.locator(".legend li span").last.inner_text() == "Lower bound"
    assert len(lines) == 2


def test_table_sorts_by_click_and_by_keyboard(page):
    header = page.locator("#results-table th[data-column=latency_ms]")
    index = page.evaluate("h => [...h.parentNode.children].indexOf(h) + 1", header.element_handle())
    expected = TABLE["latency_ms"].dropna().sort_values()
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    found = [float(text.split()[-1]) for text in column(page, index) if text]
    assert found == pytest.approx(list(expected), rel=1e-3)
    header.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "descending"
    found = [float(text.split()[-1]) for text in column(page, index) if text]
    assert found == pytest.approx(list(expected[::-1]), rel=1e-3)


def test_table_filters_by_words_of_any_column(page):
    search = page.get_by_label("Search")
    search.fill("VLLM kv CACHE")
    assert column(page, 5) == ["16384", "32768"]
    search.fill("nowhere")
    assert page.locator("#results-table").get_by_role("status").inner_text() == f"0 of {len(TABLE)} rows"
    search.fill("")
    page.get_by_text(f"{len(TABLE)} of {len(TABLE)} rows").wait_for()


def test_lost_cases_have_their_reasons(page):
    text = page.locator("#failures").inner_text()
    assert {record.reason for record in PAPER.records if record.reason and record.reason not in text} == set()


def test_page_and_figures_follow_the_theme_of_the_system(page):
    def look():
        page.evaluate("drawAll(figures.filter((figure) => figure.stale))")
        return page.evaluate(
            "n => [getComputedStyle(document.body).backgroundColor,"
            " document.querySelector(`#figure-${n} .plot`).data[2].line.color]",
            FIG15,
        )

    light = look()
    page.emulate_media(color_scheme="dark")
    browsing.eventually(page, lambda: [one != other for one, other in zip(light, look(), strict=True)], [True, True])
    page.emulate_media(color_scheme="light")
    browsing.eventually(page, look, light)


def test_downloads_hold_the_records_and_the_table(page):
    assert browsing.downloaded(page, "Records (JSON lines)").splitlines() == [
        record.to_json() for record in PAPER.records
    ]
    rows = list(csv.DictReader(io.StringIO(browsing.downloaded(page, "Table (CSV)"))))
    assert list(rows[0]) == list(TABLE.columns)
    assert [row["reason"] for row in rows] == list(TABLE["reason"])
    latencies = [float(row["latency_ms"]) for row in rows if row["latency_ms"]]
    assert latencies == pytest.approx(list(TABLE["latency_ms"].dropna()), rel=1e-5)


def test_hostile_records_are_shown_and_run_nothing(browser, saved):
    with browsing.opened(browser, saved["hostile"], viewport=PHONE) as (page, _):
        check_phone(page)
        name = synthetic.hostile().records[0].case.system
        assert page.locator("#figure-0 .legend span").first.inner_text().startswith(name)
        page.locator("#figure-0").scroll_into_view_if_needed()
        page.locator("#figure-0 .xy .points path").first.hover(force=True)
        page.locator("#figure-0 .hoverlayer", has_text=name[:30]).wait_for()
        rows = list(csv.reader(io.StringIO(browsing.downloaded(page, "Table (CSV)"))))
        assert len(rows) == 4
        records = [json.loads(line) for line in browsing.downloaded(page, "Records (JSON lines)").split("\n") if line]
        assert [record["reason"] for record in records] == [record.reason for record in synthetic.hostile().records]
        page.locator("#figure-0").get_by_role("button", name="Save SVG of").click()
        assert page.locator("main :is(img, a:not([data-role=link], #index a), script, iframe)").count() == 0


def check_phone(page):
    browsing.assert_fits_a_phone(page, "main")
    assert page.evaluate("(s => s.scrollWidth > s.clientWidth)(document.querySelector('#results-table .scroller'))")
    page.evaluate("document.querySelector('#results-table .scroller').scrollLeft = 150")
    edges = "[...document.querySelectorAll('#results-table tr > :first-child')].map(e => e.getBoundingClientRect().x)"
    assert set(page.evaluate(edges)) == {17}  # the first column is sticky


def test_phone_scrolls_only_inside_tables(browser, saved):
    with browsing.opened(browser, saved["paper"], viewport=PHONE, has_touch=True, color_scheme="dark") as (page, _):
        check_phone(page)
        assert max(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")) < 64


@pytest.mark.parametrize("viewport", [{"width": 1400, "height": 900}, PHONE])
def test_the_first_figure_is_seen_without_scrolling(browser, saved, viewport):
    with browsing.opened(browser, saved["paper"], viewport=viewport) as (page, _):
        assert "TTT-Linear is fastest" in page.locator("#figure-0 h3").inner_text()
        bottom = page.evaluate("document.querySelector('#figure-0 .plot .xy').getBoundingClientRect().bottom")
        assert bottom <= viewport["height"]
        assert page.locator(".reading ul").is_hidden()
        page.get_by_text("How to read this").click()
        assert page.locator(".reading ul").is_visible()


@pytest.mark.parametrize(("width", "is_whole"), [(1280, True), (390, False)])
def test_a_name_at_a_lines_end_is_truncated_only_without_room(browser, page_folder, width, is_whole):
    records = [synthetic.ok(Case("MAM" * 8, "torch", "1.3b", "forward", 1, 8192 << n), 1.0) for n in range(2)]
    right = "selector => [...document.querySelectorAll(selector)].map(e => e.getBoundingClientRect().right)"
    path = browsing.save(synthetic.of_suite("long-context", *records), page_folder, "page")
    with browsing.opened(browser, path, viewport={"width": width, "height": 900}) as (page, _):
        [shown] = page.locator("#figure-0 .annotation").all_text_contents()
        [end], room = (page.evaluate(right, f"#figure-0 {part}") for part in (".annotation text", ".main-svg"))
    assert shown.endswith("MAM" * 8 + " · PyTorch" if is_whole else "…")
    assert end <= min(room)


# Text of the same width in any font.
SAME_WIDTHS = "CanvasRenderingContext2D.prototype.measureText = (text) => ({ width: 6.65 * text.length })"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (("mamba mamba-ssm 1", "transformer flash 1", "transformer cudnn 1"), {"Mamba", "flash", "cudnn"}),
        (("mamba mamba-ssm 1", "mamba mamba-ssm 16"), {"batch 1", "batch 16"}),  # a number keeps its word
        (
            ("transformer torch 1", "transformer torch 16", "ttt-linear torch 1", "ttt-linear torch 16"),
            {"Transformer · 1", "Transformer · 16", "TTT-Linear · 1", "TTT-Linear · 16"},
        ),
    ],
)
def test_names_of_one_systems_lines_differ_on_a_phone(browser, tmp_path, lines, shown):
    split = [line.split() for line in lines]
    cases = [Case(*own, "1.3b", "forward", int(batch), 8192 << n) for *own, batch in split for n in range(2)]
    made = synthetic.of_suite("long-context", *(synthetic.ok(case, 1.0) for case in cases))
    path = browsing.save(made, tmp_path, "p")
    path.write_text(path.read_text().replace("<head>", f"<head><script>{SAME_WIDTHS}</script>", 1))
    with browsing.opened(browser, path, viewport=PHONE) as (page, _):
        names = page.locator("#figure-0 .annotation").all_text_contents()
    assert {name.partition(" ")[2] for name in names} == shown


def test_an_oom_case_has_no_point_even_with_a_metric(browser, tmp_path):
    at = [Case("ttt-linear", "thunderkittens", "1.3b", "forward", 1, context) for context in (8192, 65536, 131072)]
    at += [replace(case, system="mamba", backend="mamba-ssm") for case in at]
    records = [synthetic.ok(case, 9.0, metrics={"state_bytes": 20}) for case in at[:-1]]
    records.append(replace(synthetic.lost(at[-1], "oom", "too large"), metrics={"state_bytes": 90}))
    made = synthetic.of_suite("long-context", *records)
    [(number, figure)] = [each for each in enumerate(figures(made.table, made.catalogue)) if each[1].y == "state_bytes"]
    view = View(made.table, made.catalogue, figure)
    assert sorted(point.value for line in figure.lines for point in view.points(line)) == [2e-5] * 5
    with browsing.opened(browser, browsing.save(made, tmp_path, "page")) as (page, _):
        page.locator(f"#figure-{number} .annotation").first.wait_for()
        drawn = page.evaluate(f"document.querySelector('#figure-{number} .plot').data.flatMap(t => [...t.y])")
        ticks = page.locator(f"#figure-{number} .ytick text").all_text_contents()
    assert max(value for value in drawn if value is not None) == 2e-5
    assert {"1e−5", "2e−5"} <= set(ticks)  # 0.00001 would cover the axis title


def test_a_name_stands_at_its_lines_end_with_its_marker(browser, page_folder):
    cases = [Case("ttt-linear", "thunderkittens", "1.3b", "forward", 1, context) for context in (8192, 65536)]
    records = [*(synthetic.ok(case, 9.0) for case in cases), synthetic.ok(replace(cases[0], system="ttt-mlp"), 20.0)]
    path = browsing.save(synthetic.of_suite("long-context", *records), page_folder, "page")
    with browsing.opened(browser, path) as (page, _):
        plot = page.locator("#figure-0 .nsewdrag").bounding_box()
        names = page.locator("#figure-0 .annotation text").all()
        boxes = {name.text_content(): name.bounding_box() for name in names}
        colors = page.evaluate("[...document.querySelectorAll('#figure-0 .annotation tspan')].map(e => e.style.fill)")
        drawn = page.evaluate("document.querySelector('#figure-0 .plot').data.map((trace) => trace.line.color)")
    assert boxes.keys() == {"● TTT-Linear", "■ TTT-MLP"}
    assert all(box["x"] >= plot["x"] + plot["width"] - 1 for box in boxes.values())
    assert set(colors) == set(drawn)


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    forms, states, batches = ("dual", "primal"), ("float32-planes", "float32", "float16", "bfloat16"), (1, 4096)
    records = [
        synthetic.ok(
            Case("ttt-mlp", f"triton-{form}", "1.3b", "generate", batch, 1, state_dtype=state, timing="graph"),
            batch / 1e3,
            metrics=synthetic.work(batch * 2e6, batch * 1e6),
        )
        for form, state, batch in itertools.product(forms, states, batches)
    ]
    folder = tmp_path_factory.mktemp("steps")
    return browsing.save(synthetic.of_suite("kernel-generate", *records), folder, "steps")


@pytest.mark.parametrize("width", [1280, 390])
def test_names_at_the_ends_of_many_lines_stay_in_the_plot(browser, steps, width):
    with browsing.opened(browser, steps, viewport={"width": width, "height": 900}) as (page, _):
        plot = page.locator("#figure-0 .nsewdrag").bounding_box()
        names = page.locator("#figure-0 .annotation text")
        boxes = [name.bounding_box() for name in names.all()]
        texts = [text.partition(" ")[2] for text in names.all_text_contents()]
        assert {"0.001", "1"} <= {*page.locator("#figure-0 .ytick text").all_text_contents()}
    centers = sorted(box["y"] + box["height"] / 2 for box in boxes)
    assert plot["y"] - 1 <= centers[0] < centers[-1] <= plot["y"] + plot["height"] + 1
    assert min(b - a for a, b in itertools.pairwise(centers)) > 12
    assert len(texts) == 10
    assert {"primal · bfloat16", "dual · float32"} <= {*texts}
