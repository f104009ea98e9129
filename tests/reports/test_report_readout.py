"""A point of a line over several GPUs names its GPU. A point of several processes names how much they differ."""

import browsing
import synthetic_records as synthetic

from harness.schema.case import Case


def forward(context, system="ttt-linear", backend="thunderkittens"):
    return Case(system, backend, "1.3b", "forward", 16, context)


def opened(browser, page_folder, *records):
    return browsing.opened(
        browser, browsing.save(synthetic.of_suite("fig15-forward", *records), page_folder, "page"), viewport=DESK
    )


DESK = {"width": 1400, "height": 900}


def test_a_point_of_a_line_over_several_gpus_names_its_own(browser, page_folder):
    units = {2048: "01234567", 8192: "89abcdef"}
    records = [
        synthetic.ok(forward(at), at / 500, environment=synthetic.environment(device_id=unit))
        for at, unit in units.items()
    ]
    with opened(browser, page_folder, *records) as (page, _):
        assert page.locator("#figure-0 .legend span").all_inner_texts() == ["TTT-Linear · ThunderKittens"]
        page.locator("#figure-0 .plot").focus()
        for unit in units.values():
            page.keyboard.press("ArrowRight")
            assert f"30 samples · GPU {unit}" in page.locator("#figure-0 .readout").inner_text()
    with opened(browser, page_folder, *records[:1]) as (page, _):
        page.locator("#figure-0 .plot").focus()
        page.keyboard.press("ArrowRight")
        assert "GPU" not in page.locator("#figure-0 .readout").inner_text()


def test_a_point_of_several_processes_names_their_spread(browser, page_folder):
    runs = [synthetic.ok(forward(2048), 100.0 + repeat, repeat=repeat) for repeat in range(3)]
    with opened(browser, page_folder, *runs) as (page, _):
        page.locator("#figure-0 .plot").focus()
        page.keyboard.press("ArrowRight")
        text = page.locator("#figure-0 .readout").inner_text()
        assert "samples of 3 processes; process medians differ by up to 1.980%" in text
