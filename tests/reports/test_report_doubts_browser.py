"""Points that are in doubt have their signs, in a real browser."""

import browsing
import pytest
import synthetic_records as synthetic

from harness.case import Case


@pytest.fixture(scope="module")
def doubtful(browser, tmp_path_factory):
    """Another backend, a full cache, few samples, a loaded machine, unsteady samples, a failed and a skipped case."""
    contexts = [2048 << step for step in range(5)]
    cases = [Case("transformer", "vllm", "1.3b", "generate", 512, context) for context in contexts]
    loaded = synthetic.environment() | {"cpu": {"others_share": 0.5, "idle_share": 0.0}}
    records = [
        synthetic.ok(cases[0], 1.0, count=3, metrics={"sequences_at_once": 5}),
        synthetic.ok(cases[1], 2.0, environment=loaded),
        synthetic.ok(cases[2], 4.0, spread=1.0),
        synthetic.lost(cases[3], "failed", "it broke"),
        synthetic.lost(cases[4], "skipped", "not here"),
        *(synthetic.ok(Case("transformer", "torch", "1.3b", "generate", 512, each), 9.0) for each in contexts[:2]),
        synthetic.ok(Case("mamba", "mamba-ssm", "1.3b", "generate", 512, 2048), 1.1),
    ]
    folder = tmp_path_factory.mktemp("doubtful")
    path = browsing.save(synthetic.of_suite("fig15-generate", *records), folder, "doubtful")
    with browsing.opened(browser, path) as (page, wrongs):
        yield page
        browsing.check(page, wrongs)


def test_each_doubt_about_a_point_has_its_sign_and_the_picture_says_what_it_means(doubtful):
    data = doubtful.evaluate(
        "document.querySelector('#figure-0 .plot').data.map(t => ({x: t.x, text: t.text, marker: t.marker}))"
    )
    [signs] = [trace for trace in data if trace.get("text")]
    assert dict(zip(signs["x"], signs["text"], strict=True)) == {2048: "†*", 4096: "‡", 8192: "§"}
    full, lost = [trace for trace in data if isinstance((trace.get("marker") or {}).get("symbol"), list)]
    assert full["marker"]["symbol"] == ["diamond-dot", "diamond", "diamond"]
    assert dict(zip(lost["x"], lost["marker"]["symbol"], strict=True)) == {16384: "x-thin", 32768: "line-ew"}
    said = doubtful.locator("#figure-0 .annotation").all_text_contents()[-1]
    for words in (
        "† fewer sequences at once than asked for: 5 of 512",
        "* fewer than six",
        "‡ others used",
        "§ median not known",
        "× no result",
        "– not tried",
    ):
        assert words in said


def test_signs_stand_beside_markers_and_bars(doubtful):
    boxes = """selector => [...document.querySelectorAll(`#figure-0 .plot .scatterlayer ${selector}`)].map((each) => {
      const { left, right, top, bottom } = each.getBoundingClientRect();
      return [left, right, top, bottom];
    })"""
    signs = doubtful.evaluate(boxes, ".textpoint text")
    drawn = doubtful.evaluate(boxes, ".errorbar path")
    drawn += doubtful.evaluate(boxes, ".trace:has(.js-line) .points path.point")
    assert len(signs) == 3
    assert len(drawn) >= 6
    for left, right, top, bottom in signs:
        for box in drawn:
            assert right <= box[0] or left >= box[1] or bottom <= box[2] or top >= box[3]


def test_other_backends_wait_behind_a_button(doubtful):
    assert browsing.lines_drawn(doubtful, 0) == 2
    entries = doubtful.locator("#figure-0 .legend li:visible button:not(.only)")
    assert entries.all_inner_texts() == ["Transformer · vLLM", "Mamba · mamba-ssm", "More backends (1)"]
    doubtful.get_by_role("button", name="More backends (1)").click()
    assert browsing.lines_drawn(doubtful, 0) == 3
    assert "Transformer · PyTorch" in entries.all_inner_texts()
    doubtful.get_by_role("button", name="Fewer backends").click()
    assert browsing.lines_drawn(doubtful, 0) == 2
