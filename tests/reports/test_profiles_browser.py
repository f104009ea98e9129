"""The profile of a point can be opened and read by pointer, by touch, or by keyboard alone."""

import browsing
import pytest
import synthetic_profiles

from reports.publish import write_report


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiles")
    run = synthetic_profiles.write_run(folder / "run")
    write_report(run.folder, folder / "page.html")
    return folder / "page.html", list(run.profiles())


@pytest.fixture(scope="module")
def shared(browser, report):
    with browsing.opened(browser, report[0], viewport={"width": 1280, "height": 900}) as (page, errors):
        yield page, errors


@pytest.fixture
def page(page):
    page.mouse.move(0, 0)  # away from the plots
    page.evaluate("history.replaceState(null, '', location.pathname)")
    page.evaluate("for (const each of document.querySelectorAll('.profile details')) each.open = false")
    return page


@pytest.fixture
def profile(page):
    anchor = page.locator(".profile").first.get_attribute("id")
    page.evaluate("anchor => { location.hash = anchor; }", anchor)
    found = page.locator(f"#{anchor}")
    found.locator(".timeline .xtick text").first.wait_for()
    return found


def readout(profile, plot):
    return profile.locator(f".{plot} .readout").inner_text()


def wait_until_opened(page, anchor):
    page.wait_for_function("a => document.activeElement.id === a", arg=anchor)
    page.locator(f"#{anchor} details[data-profile][open]").wait_for()
    page.wait_for_function("a => Math.abs(document.getElementById(a).getBoundingClientRect().top) < 200", arg=anchor)


def test_a_profiled_point_has_a_link_and_a_click_opens_its_profile(page, report):
    point = page.locator("#figure-0 .xy .points path").first
    page.locator("#figure-0").scroll_into_view_if_needed()
    point.hover(force=True)
    page.locator("#figure-0 .readout").get_by_text("Profile of this point").wait_for()
    box = point.bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    wait_until_opened(page, f"profile-{report[1][0]}")


def walk_to(page, x):
    page.locator("#figure-0 .plot").focus()
    for key in ["ArrowLeft"] * 9 + ["ArrowRight"] * 9:
        page.keyboard.press(key)
        shown = page.locator("#figure-0 .readout").inner_text()
        if "Mamba" in shown and f": {x} " in shown:
            return shown
    raise AssertionError(f"no point of Mamba at {x}: {shown}")


def test_the_keyboard_goes_from_each_point_to_its_own_profile(page, report):
    assert "Profile of this point" in walk_to(page, "2k")
    page.keyboard.press("Enter")
    wait_until_opened(page, f"profile-{report[1][3]}")


def test_a_point_without_a_profile_has_no_link(page):
    assert "Profile of this point" not in walk_to(page, "4k")
    enter = """plot => {
      plot.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
      return figures[0].readout.innerText;
    }"""
    assert "no profile" in page.locator("#figure-0 .plot").evaluate(enter)  # at once: Plotly's hover may be late
    assert "profile" not in page.evaluate("location.hash")


def test_a_tap_describes_the_point_below_the_plot_and_links_its_profile(browser, report):
    with browsing.opened(browser, report[0], viewport=browsing.PHONE, has_touch=True, is_mobile=True) as (page, _):
        page.locator("#figure-0 .plot").scroll_into_view_if_needed()
        box = page.locator("#figure-0 .xy .points path").first.bounding_box()
        page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.locator("#figure-0 .readout", has_text="30 samples").wait_for()
        assert not page.locator("#figure-0 .hoverlayer").is_visible()  # the readout has the same text
        page.get_by_role("link", name="Profile of this point").tap()
        wait_until_opened(page, f"profile-{report[1][0]}")


def test_a_link_to_a_profile_opens_it(browser, report):
    path, keys = report
    with browsing.opened(browser, path, f"#profile-{keys[2]}") as (page, _):
        wait_until_opened(page, f"profile-{keys[2]}")
        assert page.locator(".profile details[open]").count() == 1


def test_a_roofline_is_read_point_by_point(profile, page):
    host = profile.locator(".roofline .plot-host")
    points = host.evaluate("host => host.data.at(-1)")
    host.focus()
    seen = []
    for _ in points["x"]:
        page.keyboard.press("ArrowRight")
        seen.append(readout(profile, "roofline"))
    assert len(set(seen)) == len(points["x"])
    [linear] = [text for text in seen if text.startswith("linear_forward")]
    assert "210 TFLOP/s at 190.9 FLOPs per byte, 37% of peak bandwidth" in linear
    at = seen.index(linear)
    assert (points["x"][at], points["y"][at]) == (190.9, 210)
    assert any(text.startswith("GEMMs as a whole") for text in seen)
    profile.locator(".roofline .scatterlayer .trace").last.locator(".point").last.hover(force=True)
    browsing.eventually(page, lambda: readout(profile, "roofline"), seen[-1])
    assert profile.locator("tr.chosen th").inner_text() in seen[-1]


def test_layer_names_are_in_boxes_that_they_fit(profile, page):
    labels, host = profile.locator(".timeline .textpoint"), profile.locator(".timeline .plot-host")
    show = "(host, range) => Plotly.relayout(host, { 'xaxis.range': range }).then(() => null)"
    whole = host.evaluate("host => host.layout.xaxis.range")
    for most, names in ((whole[1], ["forward", "0"]), (0.01, ["forward", "layer 0"]), (1000, ["", ""])):
        host.evaluate(show, [0, most])
        browsing.eventually(page, lambda: labels.all_text_contents()[:2], names)
    host.evaluate(show, whole)


def test_a_timeline_is_read_launch_by_launch(profile, page):
    host = profile.locator(".timeline .plot-host")
    host.focus()
    seen = []
    for _ in range(6):
        page.keyboard.press("ArrowDown")
        seen.append(readout(profile, "timeline"))
    assert seen[0].startswith("native::indexSelectLargeIndex: 308.7 µs, starts at 0, in forward; Other")
    assert "in forward / layer 0 / operator; TTT kernel" in seen[5]
    assert profile.locator("tr.chosen th").inner_text() == "linear_forward"
    page.keyboard.press("ArrowUp")
    assert readout(profile, "timeline") == seen[4]


def test_a_pointer_shows_a_launch_and_the_wheel_scrolls_the_page(profile, page):
    host = profile.locator(".timeline .plot-host")
    host.scroll_into_view_if_needed()
    box = host.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 68)
    profile.locator(".timeline .readout", has_text="in forward / layer 11").wait_for()
    scrolled = page.evaluate("scrollY")
    page.mouse.wheel(0, -40)
    page.wait_for_function("before => scrollY < before", arg=scrolled)


def test_on_a_phone_nothing_is_wider_than_the_screen(browser, report):
    path, keys = report
    with browsing.opened(browser, path, viewport=browsing.PHONE, has_touch=True) as (page, _):
        page.evaluate("a => { location.hash = a; }", f"profile-{keys[0]}")
        page.locator(f"#profile-{keys[0]} .timeline .xtick text").first.wait_for()
        browsing.assert_fits_a_phone(page, "#profiles")
