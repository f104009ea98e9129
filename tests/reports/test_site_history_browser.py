"""A system over time in a browser: which case is shown, what its changes are, and where they lead."""

import re

from site_browsing import opened, settle
from small_runs import a_case, a_run, on_commit, on_gpu, timed

from reports.site.build import write_site


def test_a_system_over_time_marks_changes_and_follows_the_chosen_case(browser, tmp_path):
    runs = [
        a_run(
            tmp_path / f"day-{day}",
            timed(a_case(64), 5, on_commit(str(day)), at=f"2026-11-1{day}T03:00:00+00:00"),
            timed(a_case(128), ms, on_commit(str(day)), at=f"2026-11-1{day}T03:01:00+00:00"),
            at=f"2026-11-1{day}T03:00:00+00:00",
        ).folder
        for day, ms in enumerate((10, 10.1, 12))
    ]
    site = tmp_path / "site"
    write_site(runs, site)
    (path,) = site.glob("over-time/*.html")
    traces = "document.getElementById('plot').data.map((each) => ({y: each.y, text: each.text}))"
    with opened(browser, site, f"over-time/{path.name}") as page:
        points, changes = page.evaluate(traces)
        assert points["y"] == [10, 10.1, 12]
        assert changes == {"y": [12], "text": ["+18.8%<br>2222222"]}
        assert page.get_attribute("#plot", "aria-label").startswith("Line chart of the latency of ttt-linear · torch")
        page.locator("#case").focus()
        page.keyboard.press("ArrowDown")
        page.locator("#figure-title", has_text="T=64").wait_for()
        settle(page)
        assert page.evaluate("document.activeElement.id") == "case"
        points, changes = page.evaluate(traces)
        assert points["y"] == [5, 5, 5]
        assert changes["y"] == []
        page.locator(".numbers summary").click()
        assert page.locator("#numbers tbody tr").count() == 3
        page.get_by_role("link", name="day-1 and day-2").click()
        page.wait_for_url("**/compared/day-1-*--day-2-*.html")
        settle(page)
        assert page.locator("#cases tbody tr td:first-child").all_inner_texts() == ["slower", "same within noise"]
    with opened(browser, site, f"over-time/{path.name}#%") as page:  # a truncated address
        assert page.evaluate(traces)[0]["y"] == [10, 10.1, 12]


def test_the_cases_of_a_system_are_grouped_and_searched_and_lead_to_the_runs(browser, tmp_path):
    runs = []
    for day, contexts in enumerate(((1024, 256, 64, 8192), (1024, 64), (1024,))):
        at = f"2026-11-1{day}T03:00:00+00:00"
        records = [timed(a_case(context), 5, at=at) for context in contexts]
        records += [timed(a_case(64, phase="generate", batch=16), 5, at=at)] if day == 0 else []
        runs.append(a_run(tmp_path / f"day-{day}", *records, at=at).folder)
    site = tmp_path / "site"
    write_site(runs, site)
    (path,) = site.glob("over-time/*.html")
    with opened(browser, site, f"over-time/{path.name}") as page:
        offered = page.evaluate(
            "[...document.querySelectorAll('#case option')].map(e => [e.parentNode.label ?? '', e.textContent])"
        )
        assert [group for group, _ in offered] == ["forward, batch 2"] * 4 + ["generate, batch 16"]
        found = [re.sub(r".*T=(\d+)[^·]*", r"\1 ", text) for _, text in offered]
        assert found == ["64 · 2 runs", "256 ", "1024 · 3 runs", "8192 ", "64 "]
        page.get_by_label("Search").fill("T=1024 forWARD")
        assert page.locator("#case option").count() == 1
        assert page.inner_text("#count") == "1 of 5 cases"
        assert "T=1024 " in page.inner_text("#figure-title")  # of the most runs
        page.locator(".numbers summary").click()
        page.locator("#numbers").get_by_role("link", name="day-0").click()
        page.wait_for_url("**/runs/day-0-*.html")
        settle(page)


def test_points_over_time_are_links_in_the_color_of_their_system(browser, tmp_path):
    runs = []
    for day, (gpu, ms) in enumerate((("H100", 5), ("H200", 5), ("H200", 8))):
        at = f"2026-11-1{day}T03:00:00+00:00"
        runs.append(a_run(tmp_path / f"day-{day}", timed(a_case(64), ms, on_gpu(gpu), at=at), at=at).folder)
    site = tmp_path / "site"
    write_site(runs, site)
    (path,) = site.glob("over-time/*.html")
    first = "document.getElementById('plot').data.slice(0, 2)"
    looks = f"{first}.map(({{line, marker}}) => [line.color, line.dash, marker.symbol[0]])"
    with opened(browser, site, f"over-time/{path.name}") as page:
        (h100, solid, marker), (h200, dash, other) = page.evaluate(looks)
        assert (h100 == h200, solid, dash, marker != other) == (True, "solid", "dash", True)
        assert page.locator("#case option").inner_text().endswith("3 runs")
        said = page.locator("#plot a").evaluate_all("all => all.map(each => each.getAttribute('aria-label'))")
        assert [text.partition(",")[0] for text in said] == ["day-0", "day-1", "slower: +60.0% against day-1"]
        assert [gpu in text for gpu, text in zip(("H100", "H200", "H200"), said, strict=True)] == [True] * 3
        page.locator("#case").focus()
        for _ in range(3):
            page.keyboard.press("Tab")
        page.locator(".hoverlayer .hovertext", has_text="+60.0%").wait_for()
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/day-2-*.html")
        page.go_back()
        settle(page)
        page.locator("#plot .point").first.hover(force=True)
        page.mouse.down()
        page.mouse.up()
        page.wait_for_url("**/runs/day-0-*.html")


def test_a_system_over_time_says_where_it_draws_the_time_of_a_token(browser, tmp_path):
    runs = []
    for day, tokens in enumerate((11, 10)):
        at = f"2026-11-1{day}T03:00:00+00:00"
        records = [timed(a_case(64), 22, tokens=tokens, at=at), timed(a_case(128), 22, tokens=11, at=at)]
        runs.append(a_run(tmp_path / f"day-{day}", *records, at=at).folder)
    site = tmp_path / "site"
    write_site(runs, site)
    (path,) = site.glob("over-time/*.html")
    drawn = """() => {
      const plot = document.getElementById('plot');
      const [points, changes] = plot.data;
      return {y: points.y, text: points.text, changes: changes.hovertext, title: plot.layout.yaxis.title.text};
    }"""
    with opened(browser, site, f"over-time/{path.name}") as page:
        page.locator(".numbers summary").click()
        said = page.evaluate(drawn)
        assert said["y"] == [2, 2.2]
        assert said["title"] == "latency, ms per token"
        assert ["ms per token" in text for text in said["text"]] == [True, True]
        assert [text.split("<br>")[-1] for text in said["text"]] == ["11 sequences at once", "10 sequences at once"]
        assert said["changes"][0].split("<br>")[:2] == ["slower: +10.0% against day-0", "sequences at once 11 → 10"]
        heads, newest = "#numbers thead th", "#numbers tbody tr:first-child td"
        row = dict(zip(page.locator(heads).all_inner_texts(), page.locator(newest).all_inner_texts(), strict=True))
        assert (float(row["Latency (ms per token)"]), row["Sequences at once"]) == (2.2, "10")
        page.locator("#case").select_option(index=1)
        page.locator("#figure-title", has_text="T=128").wait_for()
        settle(page)
        said = page.evaluate(drawn)
        assert (said["y"], said["title"]) == ([22, 22], "latency, ms")
        assert not [text for text in said["text"] if "token" in text or "sequences" in text]
        assert "Sequences at once" not in page.locator(heads).all_inner_texts()
