"""The site of many runs in a browser: from a disk, by keyboard, on a phone; it says what `ttt-bench compare` says."""

import re
from itertools import permutations

import browsing
import pytest
from site_browsing import COMPARED, opened, settle
from small_runs import a_case, a_run, on_commit, on_cpu, on_gpu, timed, without

from harness.schema.record import RecordError
from harness.schema.run import Run
from reports.compare import views
from reports.compare.comparison import Comparison, NotComparable, compare
from reports.site.build import write_site

PHONE = {"width": 390, "height": 844}
CHECKED = {"light": (15,), "dark": (1, "color-contrast")}  # rules of axe that must hold, and which one is looked at


def runs_of(folder):
    """Runs that differ in everything that a comparison tells."""
    a, b = on_commit("a"), on_commit("b", dirty=True, software={"python": "3.12", "torch": "2.12", "__proto__": "1"})
    loaded = on_commit("b", cpu={"others_share": 0.434, "idle_share": 0.01})
    hot = on_commit("b")
    hot["gpu"] = hot["gpu"] | {"after": {"throttle_reasons": ["sw_thermal_slowdown"]}}
    c = [a_case(64 << number) for number in range(13)]
    on = {"monday": {"at": "2026-11-16T03:00:00+00:00"}, "friday": {"at": "2026-11-20T03:00:00+00:00"}}
    of = {
        "monday": [timed(case, 10 + number, a, **on["monday"]) for number, case in enumerate(c[:8])]
        + [
            without(c[8]),
            timed(c[9], 4, a, **on["monday"]),
            without(c[10]),
            timed(c[11], 0, a, **on["monday"]),
            timed(c[12], 14, a, **on["monday"]),
        ],
        "friday": [
            timed(c[0], 10.3, b, **on["friday"]),
            timed(c[1], 12.5, b, **on["friday"]),
            timed(c[2], 9.7, b, **on["friday"]),
            timed(c[3], 20, b, samples=1, **on["friday"]),
            timed(c[4], 20, loaded, **on["friday"]),
            timed(c[12], 20, hot, **on["friday"]),
            timed(c[5], 1e-3, a, **on["friday"]),
            timed(c[6], 16 * 1.0512, b, **on["friday"]),
            timed(c[8], 3, b, **on["friday"]),
            without(c[9], "oom", "does not <b>fit</b>"),
            without(c[10], "killed", "by hand"),
            timed(c[11], 2, b, **on["friday"]),
            timed(a_case(system="mamba"), 3, b, **on["friday"]),
        ],
        "a100": [timed(c[0], 20, on_gpu("A100"))],
        "cpu": [timed(c[0], 20, on_cpu())],
        "others": [timed(a_case(7), 20)],
    }
    rounds = [
        [timed(case, ms * by, a, repeat) for case in c[:3] for repeat, ms in enumerate((10, 10.4, 9.9))]
        for by in (1.0, 1.3)
    ]
    runs = [a_run(folder / name, *records).folder for name, records in of.items()]
    for name, records in zip(("old", "new"), rounds, strict=True):
        runs.append(a_run(folder / name, *records, repeats=3, arguments=("run", "--repeats", "3")).folder)
    return {run.name: run for run in runs}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return runs_of(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def site(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "site"
    write_site(list(runs.values()), out)
    return out


def id_of(site, name):
    (path,) = site.glob(f"data/{name}-????????.js")
    return path.stem


def pages_of(site):
    """Its own pages, each filled."""
    compared = f"compare.html?a={id_of(site, 'monday')}&b={id_of(site, 'friday')}"
    return ["index.html", compared, *(f"over-time/{path.name}" for path in site.glob("over-time/*"))]


def focused(page):
    said = "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).trim()"
    return page.evaluate(said)


def tab_to(page, words, key="Tab"):
    """Press Tab until what has the focus says `words`."""
    for _ in range(60):
        page.keyboard.press(key)
        if focused(page).startswith(words):
            return
    pytest.fail(f"no Tab leads to {words!r}")


def test_by_keyboard_from_the_index_to_a_run_and_to_a_comparison(browser, site):
    with opened(browser, site, "index.html") as page:
        tab_to(page, "Compare cpu")
        page.keyboard.press("Space")
        tab_to(page, "cpu")
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/cpu-*.html")
        settle(page)
        assert page.locator("figure .plot .main-svg").count()
        tab_to(page, "All runs")
        page.keyboard.press("Enter")
        page.wait_for_url("**/index.html")
        settle(page)
        for name in ("friday", "monday"):  # the newest first
            tab_to(page, f"Compare {name}")
            page.keyboard.press("Space")
        tab_to(page, "Compare monday with friday", "Shift+Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/compare.html?a=monday-*&b=friday-*")
        settle(page)
        tab_to(page, "Swap")
        page.keyboard.press("Enter")
        page.wait_for_url("**#a=friday-*&b=monday-*")
        page.locator("#found tr:first-child > td:nth-child(2)", has_text="friday").wait_for()


@pytest.mark.parametrize(
    ("a", "b"), [("monday", "friday"), ("friday", "monday"), ("monday", "monday"), ("old", "new"), ("monday", "old")]
)
def test_the_site_says_of_two_runs_what_compare_says(browser, site, runs, a, b):
    found = compare(Run.open(runs[a]), Run.open(runs[b]))
    with opened(browser, site, f"compare.html?a={id_of(site, a)}&b={id_of(site, b)}") as page:
        said = page.evaluate(COMPARED)
    assert said["verdict"] == ", ".join(f"{count} {verdict}" for verdict, count in found.counts.items())
    assert all(line.replace("`", "") in said["said"] for line in views._closing(found))
    assert [list(map(as_number, row)) for row in said["rows"]] == [list(map(as_number, row)) for row in cells_of(found)]
    assert said["differs"] == ([each.sentence for each in found.differences] or ["Nothing that was recorded."])
    assert said["missing"] == views._without(found)
    assert said["sides"] == [[side.name, side.commit, side.device, side.measured] for side in (found.a, found.b)]


def cells_of(found: Comparison):
    return [views._cells(row) for row in found.rows]


def as_number(text):
    """Python and JavaScript write 20.00 differently."""
    return float(text) if re.fullmatch(r"[-+.e0-9]+", text) else text


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ("monday", "a100", "Not comparable: GPU H100 in A, A100 in B"),
        ("monday", "cpu", "Not comparable: GPU H100 in A, none in B"),
        ("monday", "others", "monday and others have no case in common."),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(browser, site, runs, a, b, why):
    with pytest.raises(RecordError, match=re.escape(why.removesuffix(".").partition(": ")[2] or "no case in common")):
        compare(Run.open(runs[a]), Run.open(runs[b]))
    with opened(browser, site, f"compare.html?a={id_of(site, a)}&b={id_of(site, b)}") as page:
        said = page.evaluate(COMPARED)
    assert said["said"].startswith(why)
    assert not said["rows"]


def test_of_runs_on_several_devices_the_site_says_what_compare_says(browser, tmp_path):
    devices = {"one": ["H100"], "two": ["H100", "H200"], "older": ["A100"], "mixed": ["A100", "H100"]}
    runs, site = {}, tmp_path / "site"
    for run, names in (devices | {"again": ["H200", "H100"]}).items():
        records = [timed(a_case(), 10, on_gpu(name), repeat) for repeat, name in enumerate(names)]
        runs[run] = a_run(tmp_path / run, *records, repeats=len(names))
    write_site([run.folder for run in runs.values()], site)

    def said(a, b):
        with opened(browser, site, f"compare.html?a={id_of(site, a)}&b={id_of(site, b)}") as page:
            return page.evaluate(COMPARED)

    for a, b in permutations(devices, 2):
        with pytest.raises(NotComparable) as refused:
            compare(runs[a], runs[b])
        assert said(a, b)["said"] == f"N{str(refused.value)[1:]}."
    assert len(said("two", "again")["rows"]) == len(compare(runs["two"], runs["again"]).rows) == 1


def test_of_runs_on_a_cpu_and_of_one_without_records_the_site_says_what_compare_says(browser, tmp_path):
    runs, site = {"empty": a_run(tmp_path / "empty")}, tmp_path / "site"
    for name, ms in (("first", 10), ("near", 13), ("far", 14)):
        runs[name] = a_run(tmp_path / name, timed(a_case(), ms, on_cpu()))
    write_site([run.folder for run in runs.values()], site)

    def said(a, b):
        with opened(browser, site, f"compare.html?a={id_of(site, a)}&b={id_of(site, b)}") as page:
            return page.evaluate(COMPARED)

    for other, verdict in (("near", "not judged"), ("far", "slower")):
        found = compare(runs["first"], runs[other])
        assert [row.judged.verdict for row in found.rows] == [verdict]
        assert [list(map(as_number, row)) for row in said("first", other)["rows"]] == [
            list(map(as_number, row)) for row in cells_of(found)
        ]
    for a, b in (("first", "empty"), ("empty", "first")):
        with pytest.raises(RecordError, match="empty: has no records to compare"):
            compare(runs[a], runs[b])
        assert said(a, b)["said"] == "empty has no records to compare."


def test_of_an_engines_few_sequences_on_another_host_the_site_says_what_compare_says(browser, tmp_path):
    cases = [a_case(timing="engine", batch=batch) for batch in (1, 4, 8)]
    here, there = on_gpu(), on_gpu(gpu=on_gpu()["gpu"] | {"device_id": "another"})
    runs, site = {}, tmp_path / "site"
    for name, ms, place in (("first", 10, here), ("beside", 12, here), ("elsewhere", 12, there)):
        runs[name] = a_run(tmp_path / name, *(timed(case, ms, place) for case in cases))
    write_site([run.folder for run in runs.values()], site)
    for other, verdicts in (("beside", ["slower"] * 3), ("elsewhere", ["not judged", "not judged", "slower"])):
        found = compare(runs["first"], runs[other])
        assert [row.judged.verdict for row in found.rows] == verdicts
        with opened(browser, site, f"compare.html?a={id_of(site, 'first')}&b={id_of(site, other)}") as page:
            said = page.evaluate(COMPARED)["rows"]
        assert [list(map(as_number, row)) for row in said] == [list(map(as_number, row)) for row in cells_of(found)]


def test_many_cases_of_one_run_alone_are_counted_as_compare_counts_them(browser, tmp_path):
    cases = [a_case(), *(a_case(64 << n, system=system) for system in ("mamba", "transformer") for n in range(8))]
    runs = {"all": a_run(tmp_path / "all", *(timed(case, 10, on_gpu()) for case in cases))}
    runs["one"] = a_run(tmp_path / "one", timed(cases[0], 10, on_gpu()))
    write_site([run.folder for run in runs.values()], tmp_path / "site")
    with opened(
        browser,
        tmp_path / "site",
        f"compare.html?a={id_of(tmp_path / 'site', 'all')}&b={id_of(tmp_path / 'site', 'one')}",
    ) as page:
        said = page.evaluate(COMPARED)["missing"]
    assert said == views._without(compare(runs["all"], runs["one"]))
    assert said == ["only in A: 16 cases (8 mamba/torch, 8 transformer/torch)"]


def test_an_address_that_names_no_run_asks_for_two(browser, site):
    for address, missing in (
        ("", ""),
        (f"?a={id_of(site, 'monday')}", ""),
        (f"?a={id_of(site, 'monday')}&b=gone", "Run B (gone) is not on this site. "),
        ("?a=../../x&b=<b>", "Run A (../../x) is not on this site. Run B (<b>) is not on this site. "),
        (
            "#a=constructor&b=__proto__",
            "Run A (constructor) is not on this site. Run B (__proto__) is not on this site. ",
        ),
    ):
        with opened(browser, site, f"compare.html{address}") as page:
            assert page.inner_text("#said") == f"{missing}Choose two runs."


def kept(page):
    return page.locator("#runs > li:visible .name").all_inner_texts()


def clear(page):
    page.get_by_role("button", name="Clear").click()
    page.locator("#runs:not(:has(> li[hidden]))").wait_for()


def test_the_index_is_searched_and_filtered(browser, site):
    with opened(browser, site, "index.html") as page:
        assert len(kept(page)) == 7
        page.get_by_label("Search").fill("monDAY  h100")
        assert kept(page) == ["monday"]
        assert page.inner_text("#count") == "1 of 7 runs"
        clear(page)
        page.locator("#device").select_option("Xeon")
        assert kept(page) == ["cpu"]
        clear(page)
        page.locator("#system").select_option("mamba")
        assert kept(page) == ["friday"]
        clear(page)
        page.get_by_label("Commit").fill("BBBB")
        assert kept(page) == ["friday"]
        clear(page)
        page.get_by_label("To").fill("2026-11-18")
        assert kept(page) == ["monday"]
        page.get_by_label("From").fill("2026-11-17")
        assert kept(page) == []
        page.reload()
        assert kept(page) == []
        assert page.get_by_label("From").input_value() == "2026-11-17"
        clear(page)
        assert len(kept(page)) == 7
        assert "#" not in page.url


def test_a_run_of_two_days_is_of_both_and_another_gpu_is_not_offered_beside_it(browser, tmp_path):
    days = ["2026-11-10T23:00:00+00:00", "2026-11-11T01:00:00+00:00"]
    long = [timed(a_case(64 * (2 + day)), 5, at=at) for day, at in enumerate(days)]
    other = timed(a_case(64), 5, on_gpu("H200"), at="2026-11-12T03:00:00+00:00")
    same = timed(a_case(128), 5, at="2026-11-09T03:00:00+00:00")
    unknown = timed(a_case(256), 5, on_gpu(""), at="2026-11-08T03:00:00+00:00")
    named = {"long": long, "other": [other], "same": [same], "unknown": [unknown]}
    runs = [a_run(tmp_path / name, *of).folder for name, of in named.items()]
    write_site(runs, tmp_path / "site")
    with opened(browser, tmp_path / "site", "index.html") as page:
        page.get_by_label("From").fill("2026-11-11")
        page.get_by_label("To").fill("2026-11-11")
        assert kept(page) == ["long"]
        assert "2026-11-10 to 2026-11-11" in page.inner_text("#runs > li:not([hidden])")
        clear(page)
        boxes = {name: page.get_by_label(f"Compare {name}", exact=True) for name in named}
        boxes["long"].check()
        assert [name for name, box in boxes.items() if box.is_disabled()] == ["other"]
        boxes["same"].check()
        assert page.get_by_role("link", name="Compare same with long").count()
        boxes["long"].uncheck()
        boxes["same"].uncheck()
        boxes["unknown"].check()
        assert not any(box.is_disabled() for box in boxes.values())


def test_without_scripts_the_index_is_a_plain_list(browser, site):
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(f"{site.as_uri()}/index.html")
    assert len(kept(page)) == 7
    assert not page.locator("input:visible, select:visible, button:visible").count()
    page.get_by_role("link", name="monday").click()
    assert "/runs/monday-" in page.url
    context.close()


def test_a_theme_that_was_chosen_on_one_page_is_that_of_all(browser, site):
    paper = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, site, "index.html") as page:
        light = page.evaluate(paper)
        page.get_by_role("button", name="Dark theme").click()
        dark = page.evaluate(paper)
        assert dark != light
        for path in [*pages_of(site), f"runs/{id_of(site, 'monday')}.html"]:
            page.goto(f"{site.as_uri()}/{path}")
            settle(page)
            assert page.evaluate(paper) == dark, path
            assert page.get_by_role("button", name="Light theme").is_visible(), path
        page.get_by_role("button", name="Light theme").click()
        page.goto(f"{site.as_uri()}/index.html")
        assert page.evaluate(paper) == light


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_a_phone(browser, site, scheme):
    for path in pages_of(site):
        with opened(browser, site, path, viewport=PHONE, color_scheme=scheme) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
            if compared := page.locator(".compared").all():  # blocks below each other, which scroll with the page
                assert compared[0].evaluate("e => e.scrollHeight === e.clientHeight")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser, site, scheme):
    for path in [*pages_of(site), f"runs/{id_of(site, 'monday')}.html"]:
        with opened(browser, site, path, color_scheme=scheme) as page:
            page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
            assert not browsing.violations(page, *CHECKED[scheme]), path


def test_a_strangers_words_are_shown_and_never_run(browser, tmp_path):
    evil = "</script><script>window.injected = 1</script><img src=x onerror='window.injected = 2'>"
    place = on_gpu(name=evil, commit=evil, software={evil: "1", "__proto__": "2"})
    case = a_case(options=((evil, evil),), size=evil)
    runs = []
    for day in (1, 2):
        records = [timed(case, 5 * day, place, at=f"2026-11-1{day}T03:00:00+00:00"), without(a_case(7), reason=evil)]
        runs.append(a_run(tmp_path / f"<img src=x onerror=window.injected={day}>", *records, at=str(day)).folder)
    site = tmp_path / "site"
    write_site(runs, site)
    a, b = sorted(path.stem for path in site.glob("data/*.js"))
    pages = ["index.html", f"compare.html?a={a}&b={b}", f"compare.html?a={b}&b={a}", f"runs/{a}.html"]
    pages += [f"over-time/{path.name}" for path in site.glob("over-time/*.html")]
    for path in pages:
        with opened(browser, site, path) as page:
            assert "window.injected" in page.inner_text("body"), path
