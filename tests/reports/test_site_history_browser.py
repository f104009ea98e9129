"""In a browser, a system's history page shows the selected case and links points to runs."""

import re

from browsing import settle, site_opened
from small_runs import a_case, a_run, on_gpu, timed

from reports.site.build import write_site

TRACES = "document.getElementById('plot').data.map(({y, text, line, marker}) => ({y, text, line, marker}))"


def over_time(folder, *days):
    """Write a site with one run per day; return (site folder, relative path of its only history page).

    days: for each day, a list of (case, ms, values), one per record.
    values: other arguments of `small_runs.timed`, by name.
    """
    runs = []
    for day, records in enumerate(days):
        at = f"2026-11-1{day}T03:00:00+00:00"
        timings = [timed(case, ms, at=at, **values) for case, ms, values in records]
        runs.append(a_run(folder / f"day-{day}", *timings, at=at).folder)
    write_site(runs, folder / "site")
    (path,) = (folder / "site").glob("over-time/*.html")
    return folder / "site", f"over-time/{path.name}"


def test_the_cases_of_a_system_are_grouped_and_lead_to_the_runs(browser, tmp_path):
    generate = a_case(64, phase="generate", batch=16)
    days = ((1024, 256, 64, 8192), (1024, 64), (1024,))
    site, path = over_time(
        tmp_path,
        *([(a_case(context), 5 + day, {}) for context in contexts] for day, contexts in enumerate(days[:2])),
        [(a_case(1024), 7, {}), (generate, 5, {})],
    )
    with site_opened(browser, site, path) as page:
        offered = page.evaluate(
            "[...document.querySelectorAll('#case option')].map(e => [e.parentNode.label ?? '', e.textContent])"
        )
        assert [group for group, _ in offered] == ["forward, batch 2"] * 4 + ["generate, batch 16"]
        found = [re.sub(r".*T=(\d+)[^·]*", r"\1 ", text) for _, text in offered]
        assert found == ["64 · 2 runs", "256 ", "1024 · 3 runs", "8192 ", "64 "]
        assert "T=1024 " in page.inner_text("#figure-title")  # of the most runs
        assert page.evaluate(TRACES)[0]["y"] == [5, 6, 7]
        assert page.get_attribute("#plot", "aria-label").startswith("Line chart of the latency of ttt-linear · torch")
        page.locator("#case").focus()
        page.keyboard.press("ArrowUp")
        page.locator("#figure-title", has_text="T=256").wait_for()
        settle(page)
        assert page.evaluate("document.activeElement.id") == "case"
        assert page.evaluate(TRACES)[0]["y"] == [5]
        page.locator(".numbers summary").click()
        page.locator("#numbers").get_by_role("link", name="day-0").click()
        page.wait_for_url("**/runs/day-0-*.html")
        settle(page)
    with site_opened(browser, site, f"{path}#%") as page:  # a truncated address
        assert page.evaluate(TRACES)[0]["y"] == [5, 6, 7]


def test_points_over_time_lead_to_their_runs_in_the_color_of_their_system(browser, tmp_path):
    days = [[(a_case(64), ms, {"environment": on_gpu(gpu)})] for gpu, ms in (("H100", 5), ("H200", 5), ("H200", 8))]
    site, path = over_time(tmp_path, *days)
    with site_opened(browser, site, path) as page:
        h100, h200 = page.evaluate(TRACES)
        assert h100["line"]["color"] == h200["line"]["color"]
        assert [each["line"]["dash"] for each in (h100, h200)] == ["solid", "dash"]
        assert h100["marker"]["symbol"][0] != h200["marker"]["symbol"][0]
        assert page.locator("#case option").inner_text().endswith("3 runs")
        assert ["H200" in text for text in (*h100["text"], *h200["text"])] == [False, True, True]
        page.locator("#plot .point").first.hover(force=True)
        page.mouse.down()
        page.mouse.up()
        page.wait_for_url("**/runs/day-0-*.html")
        settle(page)


def test_times_are_per_token_if_sequence_counts_differ(browser, tmp_path):
    days = [[(a_case(64), 22, {"tokens": tokens}), (a_case(128), 22, {"tokens": 11})] for tokens in (11, 10)]
    site, path = over_time(tmp_path, *days)
    title = "document.getElementById('plot').layout.yaxis.title.text"
    with site_opened(browser, site, path) as page:
        page.locator(".numbers summary").click()
        [trace] = page.evaluate(TRACES)
        assert (trace["y"], page.evaluate(title)) == ([2, 2.2], "latency, ms per token")
        assert ["ms per token" in text for text in trace["text"]] == [True, True]
        assert [text.split("<br>")[-1] for text in trace["text"]] == [f"{n} concurrent sequences" for n in (11, 10)]
        heads, newest = "#numbers thead th", "#numbers tbody tr:first-child td"
        row = dict(zip(page.locator(heads).all_inner_texts(), page.locator(newest).all_inner_texts(), strict=True))
        assert (float(row["Latency (ms per token)"]), row["Concurrent sequences"]) == (2.2, "10")
        page.locator("#case").select_option(index=1)
        page.locator("#figure-title", has_text="T=128").wait_for()
        settle(page)
        [trace] = page.evaluate(TRACES)
        assert (trace["y"], page.evaluate(title)) == ([22, 22], "latency, ms")
        assert not [text for text in trace["text"] if "token" in text or "sequences" in text]
        assert "Concurrent sequences" not in page.locator(heads).all_inner_texts()
