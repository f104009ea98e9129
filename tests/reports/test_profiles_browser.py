"""Can a reader open and read a point's profile by pointer, by touch and by keyboard alone?"""

import json
import re
from pathlib import Path

import browsing
import pytest
import synthetic_profiles

from reports.publish import write_report

PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    run = synthetic_profiles.write_run(folder / "run")
    write_report(run.folder, folder / "page.html")
    return folder / "page.html", list(run.profiles())


@pytest.fixture(scope="module")
def shared(browser, made):
    with browsing.opened(browser, made[0], viewport={"width": 1280, "height": 900}) as (page, wrongs):
        yield page, wrongs


@pytest.fixture
def page(shared):
    """One page for all tests of the module, reset to its state before anything is opened."""
    with browsing.in_front(*shared) as page:
        page.mouse.move(0, 0)  # off the plots, which scroll below it
        page.evaluate("history.replaceState(null, '', location.pathname)")
        page.evaluate("for (const each of document.querySelectorAll('.profile details')) each.open = false")
        yield page


@pytest.fixture
def profile(page):
    """The first profile of the page, opened by its anchor and drawn."""
    anchor = page.locator(".profile").first.get_attribute("id")
    page.evaluate("anchor => { location.hash = anchor; }", anchor)
    found = page.locator(f"#{anchor}")
    found.locator(".timeline svg").wait_for()
    found.locator(".timeline .plot-host").press("0")
    return found


def ticks(profile):
    return profile.locator(".timeline svg .axis ~ text").all_text_contents()


def readout(profile, of):
    return profile.locator(f".{of} .readout").inner_text()


def is_opened(page, anchor):
    page.wait_for_function("a => document.activeElement.id === a", arg=anchor)
    page.locator(f"#{anchor} details[data-profile][open]").wait_for()
    page.wait_for_function("a => Math.abs(document.getElementById(a).getBoundingClientRect().top) < 200", arg=anchor)


def test_a_point_that_was_profiled_says_so_and_a_click_opens_its_profile(page, made):
    point = page.locator("#figure-0 .xy .points path").first
    page.locator("#figure-0").scroll_into_view_if_needed()
    point.hover(force=True)
    page.locator("#figure-0 .readout").get_by_text("Profile of this point").wait_for()
    boxed = "document.querySelector('#figure-0 .plot').data.filter((t) => t.marker?.symbol === 'square-open').length"
    assert page.evaluate(boxed) == 1
    box = point.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    is_opened(page, f"profile-{made[1][0]}")


def walk_to(page, name, x):
    """Move the keyboard's selection to a point of the first figure; return the point's readout."""
    page.locator("#figure-0 .plot").focus()
    for key in ["ArrowLeft"] * 9 + ["ArrowRight"] * 9:
        page.keyboard.press(key)
        said = page.locator("#figure-0 .readout").inner_text()
        if name in said and f": {x} " in said:
            return said
    raise AssertionError(f"no point of {name} at {x}: {said}")


def test_the_keyboard_goes_from_each_point_to_its_own_profile(page, made):
    assert "Profile of this point" in walk_to(page, "Mamba", "2k")
    page.keyboard.press("Enter")
    is_opened(page, f"profile-{made[1][3]}")


def test_a_profile_that_was_closed_opens_again_from_its_point(page, made):
    anchor = f"profile-{made[1][3]}"
    for _ in range(2):
        walk_to(page, "Mamba", "2k")
        page.keyboard.press("Enter")
        is_opened(page, anchor)
        page.locator(f"#{anchor} details[data-profile]").evaluate("details => { details.open = false; }")


def test_the_heading_of_a_profile_that_is_opened_is_below_the_bar(page):
    anchor = page.locator(".profile").first.get_attribute("id")
    page.evaluate("anchor => { location.hash = anchor; }", anchor)
    is_opened(page, anchor)
    heading = page.locator("#profiles h3").first.bounding_box()["y"]
    bar = page.locator(".top").bounding_box()
    assert heading >= bar["y"] + bar["height"]
    assert heading < page.locator(f"#{anchor}").bounding_box()["y"]


def test_a_point_without_a_profile_leads_nowhere(page):
    assert "Profile of this point" not in walk_to(page, "Mamba", "4k")
    enter = """plot => {
      plot.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      return figures[0].readout.innerText;
    }"""
    assert "no profile" in page.locator("#figure-0 .plot").evaluate(enter)  # at once: Plotly's hover may be late
    assert "profile" not in page.evaluate("location.hash")


def test_points_keep_their_links_when_the_figure_is_drawn_anew(page, made):
    browsing.open_options(page)
    page.locator("#figure-0 .legend button").first.click()  # TTT-Linear is hidden
    walk_to(page, "TTT-MLP", "2k")
    page.keyboard.press("Enter")
    is_opened(page, f"profile-{made[1][1]}")
    page.locator("#figure-0 .legend button").first.click()


def test_a_tap_tells_the_point_below_the_plot_and_offers_the_profile(browser, made):
    with browsing.opened(browser, made[0], viewport=PHONE, has_touch=True, is_mobile=True) as (page, _):
        page.locator("#figure-0 .plot").scroll_into_view_if_needed()
        box = page.locator("#figure-0 .xy .points path").first.bounding_box()
        page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.locator("#figure-0 .readout", has_text="30 samples").wait_for()
        assert not page.locator("#figure-0 .hoverlayer").is_visible()  # the readout says the same
        page.get_by_role("link", name="Profile of this point").tap()
        is_opened(page, f"profile-{made[1][0]}")


def test_a_link_to_a_profile_opens_it(browser, made):
    path, keys = made
    with browsing.opened(browser, path, f"#profile-{keys[2]}") as (page, _):
        is_opened(page, f"profile-{keys[2]}")
        assert page.locator(".profile details[open]").count() == 1


def test_a_roofline_is_read_point_by_point(profile, page):
    points = profile.locator(".roofline .point")
    assert profile.locator(".roofline .point[tabindex='0']").count() == 1
    profile.locator(".roofline .point[tabindex='0']").focus()
    seen = []
    for _ in range(points.count()):
        seen.append(readout(profile, "roofline"))
        page.keyboard.press("ArrowRight")
    assert len(set(seen)) == points.count()
    [linear] = [text for text in seen if text.startswith("linear_forward")]
    assert "210 TFLOP/s at 190.9 FLOPs per byte, 37% of peak bandwidth" in linear
    assert any(text.startswith("GEMMs as a whole") for text in seen)
    points.last.hover(force=True)
    browsing.eventually(page, lambda: readout(profile, "roofline"), points.last.get_attribute("aria-label"))
    assert profile.locator("tr.chosen th").inner_text() in readout(profile, "roofline")


def test_points_lie_on_their_scales(profile):
    """A point of the table is where its numbers say, between two decades of each axis."""
    label = profile.locator(".roofline circle[aria-label^=linear_forward]")
    x, y = (float(label.get_attribute(name)) for name in ("cx", "cy"))
    at = {
        text: tuple(map(float, place))
        for text, *place in profile.locator(".roofline svg > text[x]").evaluate_all(
            "all => all.map(e => ['x', 'y'].reduce((said, name) => [...said, e.getAttribute(name)],"
            " [e.textContent + e.getAttribute('text-anchor')]))"
        )
    }
    left, right = at["100middle"][0], at["1000middle"][0]
    assert left + (right - left) * 0.281 == pytest.approx(x, abs=1)  # log10(190.9 / 100)
    low, high = at["100end"][1], at["1000end"][1]
    assert low + (high - low) * 0.322 - 4 == pytest.approx(y, abs=1)  # log10(210 / 100)


def test_a_timeline_zooms_by_keys_and_buttons(profile, page):
    whole = ticks(profile)
    assert whole[-1].endswith("ms")
    assert profile.locator(".timeline .label").all_text_contents()[:3] == ["prefill", "0", "1"]
    host = profile.locator(".timeline .plot-host")
    host.focus()
    for _ in range(6):
        page.keyboard.press("+")
    inside = ticks(profile)
    assert inside != whole
    assert len(profile.locator(".timeline .label").all_text_contents()) < 6
    page.keyboard.press("ArrowRight")
    assert ticks(profile) != inside
    page.keyboard.press("ArrowLeft")
    assert ticks(profile) == inside
    page.keyboard.press("-")
    assert ticks(profile) != inside
    page.keyboard.press("0")
    assert ticks(profile) == whole
    for name, changes in (("Zoom in", True), ("Later", True), ("All", False)):
        profile.get_by_role("button", name=name, exact=True).click()
        assert (ticks(profile) != whole) is changes, name


def test_a_timeline_is_read_launch_by_launch(profile, page):
    host = profile.locator(".timeline .plot-host")
    host.focus()
    seen = []
    for _ in range(6):
        page.keyboard.press("ArrowDown")
        seen.append(readout(profile, "timeline"))
    assert seen[0].startswith("native::indexSelectLargeIndex: 308.7 µs, from 0 on, in prefill; Other")
    assert "in prefill / layer 0 / operator; TTT kernel" in seen[5]
    assert profile.locator("tr.chosen th").inner_text() == "linear_forward"
    page.keyboard.press("ArrowUp")
    assert readout(profile, "timeline") == seen[4]


AREAS = """(host) => {
  const areas = {};
  for (const path of host.querySelectorAll("svg path[class^=part-]")) {
    const boxes = path.getAttribute("d").matchAll(/h(-?[\\d.]+)v(-?[\\d.]+)/g);
    areas[path.getAttribute("class").slice(5)] = [...boxes].reduce((sum, [, wide, tall]) => sum + wide * tall, 0);
  }
  const { part, time } = JSON.parse(host.closest("details").dataset.profile).timeline;
  const times = part.reduce((sums, each, at) => ({ ...sums, [each]: (sums[each] ?? 0) + time[at] }), {});
  return [areas, times];
}"""


def test_launches_narrower_than_a_pixel_take_as_much_of_a_timeline_as_of_the_time(browser, made):
    with browsing.opened(browser, made[0], viewport=PHONE) as (page, _):
        anchor = page.locator(".profile").first.get_attribute("id")
        page.evaluate("anchor => { location.hash = anchor; }", anchor)
        host = page.locator(f"#{anchor} .timeline .plot-host")
        host.locator("svg").wait_for()
        areas, times = host.evaluate(AREAS)
    areas.pop("gaps", None)
    drawn = [area / sum(areas.values()) for area in areas.values()]
    true = [time / sum(times.values()) for time in times.values()]
    assert len(drawn) > 2
    assert sorted(drawn) == pytest.approx(sorted(true), abs=0.02)


def test_the_trace_of_a_timeline_can_be_saved_for_perfetto(profile, page):
    with page.expect_download() as saved:
        profile.get_by_role("button", name="Download trace").click()
    assert re.fullmatch(r"profile-[0-9a-f]+\.trace\.json", saved.value.suggested_filename)
    events = json.loads(Path(saved.value.path()).read_text())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert rows == {0: "Phases", 1: "Layers", 2: "Operators", 3: "Kernels 1"}
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in spans if event["tid"] == 1] == [f"layer {number}" for number in range(24)]
    first, second = [event for event in spans if event["tid"] == 3][:2]
    assert first == {
        "ph": "X",
        "pid": 0,
        "tid": 3,
        "name": "native::indexSelectLargeIndex",
        "cat": "Other",
        "ts": 0,
        "dur": 308.7,
    }
    assert (second["name"], second["ts"]) == ("_norm", 310.1)


def test_a_roofline_names_the_kernels_that_take_most(profile):
    names = profile.locator(".roofline .name").all_text_contents()
    assert names[0] == "nvjet_tst_256x128_64x4_1x2_…"
    assert "linear_forward" in names
    assert "_norm" not in names


def test_what_is_read_stays_in_view_and_reading_goes_on_from_what_is_seen(profile, page):
    host = profile.locator(".timeline .plot-host")
    host.press("ArrowDown")
    for _ in range(4):
        host.press("+")
    assert profile.locator(".timeline .cursor").count() == 1  # zoomed around it
    for _ in range(12):
        host.press("ArrowRight")
    assert profile.locator(".timeline .cursor").count() == 0
    seen = ticks(profile)
    host.press("ArrowDown")
    assert profile.locator(".timeline .cursor").count() == 1
    assert ticks(profile) == seen


def test_a_pointer_reads_and_the_wheel_scrolls_the_page(profile, page):
    host = profile.locator(".timeline .plot-host")
    host.scroll_into_view_if_needed()
    whole = ticks(profile)
    box = host.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 68)
    profile.locator(".timeline .readout", has_text="in prefill / layer 11").wait_for()
    scrolled = page.evaluate("scrollY")
    page.mouse.wheel(0, -40)
    page.wait_for_function("before => scrollY < before", arg=scrolled)
    assert ticks(profile) == whole


def test_bars_of_a_group_begin_under_one_another(page):
    lefts = page.evaluate("[...document.querySelectorAll('.profile-bar')].map(e => e.getBoundingClientRect().left)")
    assert len(lefts) >= 3
    assert len(set(lefts)) == 1


def test_on_a_phone_nothing_reaches_beyond_the_screen(browser, made):
    path, keys = made
    with browsing.opened(browser, path, viewport=PHONE, has_touch=True) as (page, _):
        page.evaluate("a => { location.hash = a; }", f"profile-{keys[0]}")
        page.locator(f"#profile-{keys[0]} .timeline svg").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        beyond = page.evaluate(
            "[...document.querySelectorAll('#profiles *')].filter(e => !e.closest('.scroller, .unseen, select')"
            " && e.getBoundingClientRect().right > 391).map(e => e.outerHTML.slice(0, 90))"
        )
        assert beyond == []


def test_a_dark_page_prints_dark_ink_on_paper(browser, made):
    path, keys = made
    with browsing.opened(browser, path, color_scheme="dark") as (page, _):
        page.evaluate("a => { location.hash = a; }", f"profile-{keys[0]}")
        profile = page.locator(f"#profile-{keys[0]}")
        profile.locator(".timeline svg").wait_for()
        ink = "e => getComputedStyle(e).color.match(/\\d+/g).map(Number)"
        assert min(profile.evaluate(ink)) > 200
        page.emulate_media(media="print")
        assert max(profile.evaluate(ink)) < 60
        assert profile.locator(".zoom").is_hidden()
        assert profile.locator(".roofline svg").is_visible()
        assert page.locator(".against summary").first.is_visible()
