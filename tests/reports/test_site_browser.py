"""The site of many runs in a browser: from a disk, by keyboard, on a phone."""

import browsing
import pytest
from site_browsing import opened, settle
from small_runs import a_case, a_run, on_commit, on_cpu, on_gpu, timed, without

from harness.schema.run import Run
from reports.compare import views
from reports.compare.comparison import compare
from reports.site.build import write_site

PHONE = {"width": 390, "height": 844}
CHECKED = {"light": (15,), "dark": (1, "color-contrast")}  # rules of axe that must hold, and which one is looked at


def runs_of(folder):
    a, b = on_commit("a"), on_commit("b", dirty=True, software={"python": "3.12", "torch": "2.12", "__proto__": "1"})
    loaded = on_commit("b", cpu={"others_share": 0.434, "idle_share": 0.01})
    hot = on_commit("b", throttled=("sw_thermal_slowdown",))
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
    (path,) = site.glob(f"runs/{name}-????????.html")
    return path.stem


def pages_of(site):
    built = [f"{path.parent.name}/{path.name}" for name in ("compared", "over-time") for path in site.glob(f"{name}/*")]
    return ["index.html", *built]


def focused(page):
    said = "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).trim()"
    return page.evaluate(said)


def tab_to(page, words, key="Tab"):
    for _ in range(60):
        page.keyboard.press(key)
        if focused(page).startswith(words):
            return
    pytest.fail(f"no Tab leads to {words!r}")


def test_by_keyboard_from_the_index_to_a_run_and_to_a_comparison(browser, site):
    def follow(words, address):
        tab_to(page, words)
        page.keyboard.press("Enter")
        page.wait_for_url(address)
        settle(page)

    with opened(browser, site, "index.html") as page:
        follow("cpu", "**/runs/cpu-*.html")
        assert page.locator("figure .plot .main-svg").count()
        follow("All runs", "**/index.html")
        follow("Against monday", "**/compared/monday-*--*.html")


def test_a_comparison_says_what_compare_says(browser, tmp_path):
    of = runs_of(tmp_path)
    monday, friday = (of[name] for name in ("monday", "friday"))
    site = tmp_path / "site"
    write_site([monday, friday], site)
    found = compare(Run.open(monday), Run.open(friday))
    path = f"compared/{id_of(site, 'monday')}--{id_of(site, 'friday')}.html"
    with opened(browser, site, path) as page:
        assert page.inner_text(".lead") == views.answer(found)
        cases = page.locator("#cases tbody tr:visible")
        assert [each.rstrip() for each in cases.locator("td:nth-child(6)").all_inner_texts()] == [
            row.label for row in found.rows
        ]


def test_without_scripts_the_index_is_a_plain_list(browser, site):
    def is_own(url):
        return url.startswith(f"{site.as_uri()}/")

    with browsing.watched(browser, is_own, java_script_enabled=False) as (page, _):
        page.goto(f"{site.as_uri()}/index.html")
        assert page.locator(".runs > li").count() == 7
        page.get_by_role("link", name="monday", exact=True).click()
        page.wait_for_url("**/runs/monday-*.html")


def test_no_page_is_wider_than_a_phone(browser, site):
    for path in pages_of(site):
        with opened(browser, site, path, viewport=PHONE) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser, site, scheme):
    for path in [*pages_of(site), f"runs/{id_of(site, 'monday')}.html"]:
        with opened(browser, site, path, color_scheme=scheme) as page:
            browsing.open_all(page, "details")
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
    pages = [f"{path.relative_to(site)}" for path in site.rglob("*.html")]
    for path in pages:
        with opened(browser, site, path) as page:
            assert "window.injected" in page.inner_text("body"), path
