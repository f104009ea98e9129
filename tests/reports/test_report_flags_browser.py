"""Flagged points, ratios and missing results have signs and footnotes, in a browser."""

import re

import browsing
import pytest
import synthetic_records as synthetic

from harness.schema.case import Case


@pytest.fixture(scope="module")
def flagged(browser, tmp_path_factory):
    contexts = [2048 << step for step in range(5)]
    of_mamba = (2048, 16384, 65536)  # no other system has the last
    cases = [Case("transformer", "vllm", "1.3b", "generate", 512, context) for context in contexts]
    loaded = synthetic.environment() | {"cpu": {"others_share": 0.5, "idle_share": 0.0}}
    loaded["gpu"] = {"after": {"throttle_reasons": ["sw_thermal_slowdown"]}}
    records = [
        synthetic.ok(cases[0], 1.0, count=3, metrics={"sequences_at_once": 5}),
        synthetic.ok(cases[1], 2.0, environment=loaded),
        synthetic.ok(cases[2], 4.0, spread=1.0),
        synthetic.lost(cases[3], "failed", "it broke"),
        synthetic.lost(cases[4], "skipped", "not here"),
        *(synthetic.ok(Case("transformer", "torch", "1.3b", "generate", 512, each), 9.0) for each in contexts[:2]),
        *(synthetic.ok(Case("mamba", "mamba-ssm", "1.3b", "generate", 512, each), 1.1) for each in of_mamba),
    ]
    folder = tmp_path_factory.mktemp("flagged")
    path = browsing.save(synthetic.of_suite("fig15-generate", *records), folder, "flagged")
    with browsing.opened(browser, path) as (page, _):
        yield page


def test_each_flag_has_a_sign_and_a_footnote(flagged):
    data = flagged.evaluate(
        "document.querySelector('#figure-0 .plot').data.map(t => ({x: t.x, text: t.text, marker: t.marker}))"
    )
    assert dict(zip(data[0]["x"], data[0]["text"], strict=True)) == {2048: "†*", 4096: "‡¶", 8192: "§"}
    [lost] = [trace for trace in data if isinstance((trace.get("marker") or {}).get("symbol"), list)]
    assert dict(zip(lost["x"], lost["marker"]["symbol"], strict=True)) == {16384: "x-thin", 32768: "line-ew"}
    footnotes = flagged.locator("#figure-0 .annotation").all_text_contents()[-1]
    for words in (
        "† the KV cache held fewer sequences than requested: 5 of 512",
        "* fewer than 6",
        "‡ contended machine",
        "¶ thermally throttled",
        "§ unsteady",
        "× no result",
        "– not run",
    ):
        assert words in footnotes


def test_numbers_of_the_results_have_their_signs(flagged):
    rows = flagged.locator("#results-table tbody tr").all_inner_texts()
    signed = {cell for row in rows for cell in row.split("\t") if re.match(r"[^\w\s]", cell)}
    assert {cell.split()[0] for cell in signed} == {"†*", "‡¶", "§"}
    meaning = flagged.locator("#results-table td", has_text="†*").get_attribute("title")
    assert meaning == "the KV cache held fewer sequences than requested; fewer than 6 samples"
    assert f"({meaning})" in flagged.locator("#results-table td", has_text="†*").text_content()


def test_the_size_of_a_state_has_no_flags_of_times(browser, tmp_path):
    cases = [Case("ttt-linear", "thunderkittens", "1.3b", "forward", 1, context) for context in (8192, 16384)]
    metrics = {"state_bytes": 1.3e7}
    records = [synthetic.ok(cases[0], 4.0, spread=1.0, metrics=metrics), synthetic.ok(cases[1], 8.0, metrics=metrics)]
    path = browsing.save(synthetic.of_suite("long-context", *records), tmp_path, "metrics")
    with browsing.opened(browser, path) as (page, _):
        signs = "n => document.querySelector(`#figure-${n} .plot`).data.flatMap(t => t.text || []).filter(Boolean)"
        assert "State (MB)" in page.locator("#figure-1 .ytitle").text_content()
        assert page.evaluate(signs, 0) == ["§"]
        assert page.evaluate(signs, 1) == []
        assert "samples" in page.locator("#figure-0 .remarks").text_content()
        assert "samples" not in page.locator("#figure-1 .remarks").text_content()


@pytest.fixture(scope="module")
def pairs(browser, tmp_path_factory):
    def case(form, batch, state="float32"):
        options = (("scope", "layer"),)
        return Case("ttt-mlp", f"triton-{form}", "1.3b", "generate", batch, 1, state_dtype=state, options=options)

    records = [
        *(synthetic.ok(case("primal", batch), 3.0) for batch in (4, 16, 64, 256)),
        synthetic.ok(case("dual", 4), 1.0, environment=synthetic.environment(device_id="0ddba11d")),
        synthetic.ok(case("dual", 16), 1.0, count=3),
        synthetic.lost(case("dual", 64), "skipped", "not here"),
        synthetic.ok(case("dual", 256), 1.0, count=0),
        synthetic.ok(case("primal", 4, "float16"), 3.0),
        synthetic.lost(case("dual", 4, "float16"), "oom", "CUDA out of memory"),
    ]
    path = browsing.save(synthetic.of_suite("kernel-generate", *records), tmp_path_factory.mktemp("pairs"), "pairs")
    with browsing.opened(browser, path) as (page, _):
        yield page.locator("#figure-1")


def test_a_pair_has_the_signs_and_status_of_its_dual(pairs):
    sure, few, lost, unmeasured = pairs.page.evaluate("""() => {
      const { points, lines } = figures[1].drawing();
      const [line, all] = lines.find(([each]) => each.name === "TTT-MLP · Triton · state float32");
      return all.map((point) => [points.signs(point), points.words(line, point).join("\\n")]);
    }""")
    assert (sure[0], few[0]) == ("", "*")
    assert "GPU 5eedf00d over GPU 0ddba11d" in sure[1]
    assert "\nGPU 5eedf00d\n" in few[1]
    assert "baseline: skipped: not here" in lost[1]
    assert "\nbaseline: measured without Latency (ms)" in unmeasured[1]
    notes = pairs.locator(".annotation").last.text_content()
    for words in ("* fewer than 6 samples", "× no result", "– not run"):
        assert words in notes
    missing = pairs.locator(".legend .missing")
    assert missing.text_content().endswith("state float16: no result (baseline: oom)")
    assert missing.get_attribute("title") == "CUDA out of memory"


def test_captions_of_pairs_describe_ratios(pairs):
    remarks = pairs.locator(".remarks").text_content()
    assert "Ratios of medians of 3–30 samples, with the widest ratios of 95% intervals within one process" in remarks
