"""A site works without scripts and on a phone, passes axe, and never runs hostile text."""

import browsing
import pytest
from browsing import PHONE, site_opened
from small_runs import a_case, a_run, on_commit, on_cpu, on_gpu, timed, without

from reports.site.build import write_site

CHECKED = {"light": (15,), "dark": (1, "color-contrast")}  # fewest passed rules of axe, and the only rule to check


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    a, b = on_commit("a"), on_commit("b", dirty=True, software={"python": "3.12", "torch": "2.12", "__proto__": "1"})
    cases = [a_case(64 << number) for number in range(4)]
    of = {
        "monday": [*(timed(case, 10, a, at="2026-11-16T03:00:00+00:00") for case in cases[:3]), without(cases[3])],
        "friday": [
            timed(cases[0], 10.3, b),
            timed(cases[1], 20, on_commit("b", throttled=("sw_thermal_slowdown",))),
            without(cases[2], "oom", "does not <b>fit</b>"),
            timed(a_case(system="mamba"), 3, b),
        ],
        "a100": [timed(cases[0], 20, on_gpu("A100"))],
        "cpu": [timed(cases[0], 20, on_cpu())],
    }
    write_site([a_run(folder / name, *records).folder for name, records in of.items()], folder / "site")
    return folder / "site"


def pages_of(site):
    built = [f"{path.parent.name}/{path.name}" for name in ("compared", "over-time") for path in site.glob(f"{name}/*")]
    return ["index.html", *built]


def test_without_scripts_the_index_is_a_plain_list(browser, site):
    def is_own(url):
        return url.startswith(f"{site.as_uri()}/")

    with browsing.watched(browser, is_own, java_script_enabled=False) as (page, _):
        page.goto(f"{site.as_uri()}/index.html")
        assert page.locator(".runs > li").count() == 4
        page.get_by_role("link", name="monday", exact=True).click()
        page.wait_for_url("**/runs/monday-*.html")


def test_no_page_is_wider_than_a_phone(browser, site):
    for path in pages_of(site):
        with site_opened(browser, site, path, viewport=PHONE) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(browser, site, scheme):
    (monday,) = site.glob("runs/monday-????????.html")
    for path in [*pages_of(site), f"runs/{monday.name}"]:
        with site_opened(browser, site, path, color_scheme=scheme) as page:
            browsing.open_all(page, "details")
            assert not browsing.violations(page, *CHECKED[scheme]), path


def test_a_strangers_words_are_shown_and_never_run(browser, tmp_path):
    evil = "</script><script>window.injected = 1</script><img src=x onerror='window.injected = 2'>"
    machine = on_gpu(name=evil, commit=evil, software={evil: "1", "__proto__": "2"})
    case = a_case(options=((evil, evil),), size=evil)
    runs = []
    for day in (1, 2):
        records = [timed(case, 5 * day, machine, at=f"2026-11-1{day}T03:00:00+00:00"), without(a_case(7), reason=evil)]
        runs.append(a_run(tmp_path / f"<img src=x onerror=window.injected={day}>", *records, at=str(day)).folder)
    site = tmp_path / "site"
    write_site(runs, site)
    pages = [f"{path.relative_to(site)}" for path in site.rglob("*.html")]
    for path in pages:
        with site_opened(browser, site, path) as page:
            assert "window.injected" in page.inner_text("body"), path
