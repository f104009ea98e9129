"""The views of a comparison (summary, text, Markdown, page) show outcomes and unreliable points, and escape markup."""

import math

import pytest
from small_runs import a_case, a_run, on_gpu, timed, two, without

from harness.schema.catalogue import BackendEntry, Catalogue, SystemEntry
from reports.compare import views
from reports.compare.comparison import compare
from reports.site.build import write_site


@pytest.mark.parametrize(
    ("beyond", "lost", "start"),
    [(1, 0, "Confirmed: 19 of 20"), (2, 0, "Not confirmed: 18 of 20"), (1, 1, "Not confirmed: 18 of 19")],
)
def test_a_run_is_confirmed_with_19_of_20_points_within_3_percent(tmp_path, beyond, lost, start):
    cases = [a_case(64 + number) for number in range(20)]
    of_b = [timed(case, 10.4 if at < beyond else 10.1) for at, case in enumerate(cases)]
    of_b[len(cases) - lost :] = [without(case) for case in cases[len(cases) - lost :]]
    found = compare(*two(tmp_path, [timed(case, 10) for case in cases], of_b))
    expected = f"{start} reliable points within 3%. Over 3%: {beyond} ttt-linear · torch forward."
    assert views.answer(found) == expected + " 1 lost." * lost
    assert views.text(found).startswith(views.answer(found))


def test_reliable_points_with_overlapping_intervals_are_undecided(tmp_path):
    cases, spread = [a_case(64 + number) for number in range(4)], (0, 1, -1, 0, 0, 0, 1, -1, 0)
    sides = [[timed(case, ms) for case in cases] for ms in (10, 10.51)]
    for record in (record for side in sides for record in side):
        record.samples_ms[:] = [sorted(record.samples_ms)[4] * (1 + 0.0335 * each) for each in spread]
    found = compare(*two(tmp_path, *sides))
    assert found.counts == compare(*two(tmp_path / "swapped", *sides[::-1])).counts == {"undecided": 4}
    assert views.answer(found).startswith("Not confirmed: 0 of 4 reliable points within 3%. Over 3%: 4")


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((5, 1), "Undecided: 0 of 2 points reliable. Unreliable: 2 ttt-linear · torch forward (few samples)."),
        ((9, 1), "Confirmed: 1 of 1 reliable point within 3%. Unreliable: 1 ttt-linear · torch forward (few samples)."),
        ((9, 6), "Confirmed: 2 of 2 reliable points within 3%."),
    ],
)
def test_a_point_without_an_interval_confirms_nothing(tmp_path, counts, expected):
    cases = [a_case(context) for context in (1, 2)]
    of_b = [timed(case, 10, samples=count) for case, count in zip(cases, counts, strict=True)]
    found = compare(*two(tmp_path, [timed(case, 10) for case in cases], of_b))
    assert views.answer(found) == expected
    assert [row.result.high == math.inf for row in found.rows] == [count < 6 for count in counts]
    assert views.text(found).count("  unknown  ") == sum(count < 6 for count in counts)


def test_cases_have_the_labels_of_the_page(tmp_path):
    catalogue = Catalogue(
        systems=(SystemEntry("ttt-linear", "TTT-Linear", 0, "circle"),),
        backends=(BackendEntry("torch", "PyTorch", "solid"),),
    )
    found = compare(
        *(a_run(tmp_path / name, timed(a_case(), ms), catalogue=catalogue) for name, ms in (("a", 1), ("b", 2)))
    )
    assert [row.label for row in found.rows] == ["TTT-Linear · PyTorch tiny forward B=2 T=64 bfloat16 eager"]
    assert "1 TTT-Linear · PyTorch forward" in views.answer(found)


@pytest.mark.parametrize("own", [[], [timed(a_case(), 10.01, repeat=1, at="2026-11-22T04:50:14+00:00")]])
def test_a_copy_of_a_record_confirms_nothing(tmp_path, own):
    a = a_run(tmp_path / "a", timed(a_case(), 10 + 1e-8))  # older records have more digits
    found = compare(a, a_run(tmp_path / "b", timed(a_case(), 10), *own, repeats=1 + len(own)))
    expected = "Undecided: 0 of 1 point reliable. Unreliable: 1 ttt-linear · torch forward (the same measurement)."
    assert views.answer(found) == expected


def test_points_with_one_cause_are_one_group(tmp_path):
    cases = [a_case(context) for context in (1, 2, 3, 4)]
    of_a = [timed(case, 10, tokens=20) for case in cases]
    loaded = [on_gpu(cpu={"others_share": share, "idle_share": 0.01}) for share in (0.5, 0.6)]
    environments = [*loaded, on_gpu("H200")]
    of_b = [timed(case, 20, environment, tokens=20) for case, environment in zip(cases, environments, strict=False)]
    found = compare(*two(tmp_path, of_a, [*of_b, timed(cases[3], 20, tokens=30)]))
    assert views.answer(found).startswith(
        "Undecided: 1 of 4 points reliable. Over 3%: 1 ttt-linear · torch forward (concurrent sequences differ). "
        "Unreliable: 2 ttt-linear · torch forward (contended), 1 ttt-linear · torch forward (another GPU)."
    )


def test_cases_on_another_gpu_have_ratios_and_none_is_lost(tmp_path):
    cases = [a_case(context) for context in (1, 2, 3, 4)]
    h200 = on_gpu("H200")
    of_b = [timed(case, ms, h200) for case, ms in zip(cases, (5, 8, 12), strict=False)]
    found = compare(*two(tmp_path, [timed(case, 10) for case in cases], [*of_b, without(cases[3], "oom")]))
    assert (
        views.answer(found) == "Another GPU: b takes 0.80 times as long as a in the median of 3 points (0.50 to 1.20)."
    )
    assert (found.counts, found.regressions) == ({"another GPU": 3}, 0)


def test_markdown_collapses_its_table_and_omits_the_smallest_differences(tmp_path, monkeypatch):
    monkeypatch.setattr(views, "MARKDOWN_ROWS", 2)
    cases = [a_case(context) for context in (1, 2, 3)]
    of_b = [timed(case, ms) for case, ms in zip(cases, (10, 12, 9), strict=True)]
    shown = views.markdown(compare(*two(tmp_path, [timed(case, 10) for case in cases], of_b)))
    assert shown.startswith(
        "**Not confirmed: 1 of 3 reliable points within 3%. Over 3%: 2 ttt-linear · torch forward. 1"
    )
    assert shown.count("<details>") == shown.count("</details>") == 1
    assert shown.index("- B: b, commit") < shown.index("<details>") < shown.index("- differs: nothing")
    assert "<details><summary>2 cases, the largest difference first; 1 more omitted</summary>\n\n| outcome" in shown
    assert [line.split(" | ")[1] for line in shown.splitlines() if "T=" in line] == ["1.200", "0.900"]


def test_cases_without_a_comparison_are_listed_by_reason(tmp_path):
    cases = [a_case(context) for context in (1, 2, 3, 4, 5, 6)]
    of_a = [timed(cases[0], 1), timed(cases[1], 1), without(cases[2]), timed(cases[3], 1), without(cases[4])]
    of_b = [timed(cases[0], 1), without(cases[1], "oom", "does not fit"), timed(cases[2], 1), without(cases[4])]
    found = compare(*two(tmp_path, of_a, [*of_b, timed(cases[5], 1)]), fail_on=0.05)
    assert [(each.label.split()[6], each.reason, each.outcome) for each in found.missing] == [
        ("T=2", "no result in B: oom, does not fit", "lost"),
        ("T=3", "no result in A: failed, RuntimeError: no", "gained"),
        ("T=4", "only in A", ""),
        ("T=5", "no result in A: failed, RuntimeError: no; B: failed, RuntimeError: no", ""),
        ("T=6", "only in B", ""),
    ]
    assert (found.regressions, found.counts["lost"]) == (1, 1)
    assert "only in A: ttt-linear · torch tiny forward B=2 T=4" in views.text(found)


@pytest.mark.parametrize("ms", [(0.0, 1.0), (1e-9, 1e12), (1e12, 1e-9)])
def test_extreme_medians_raise_no_error(tmp_path, ms):
    found = compare(*two(tmp_path, [timed(a_case(), ms[0], samples=1)], [timed(a_case(), ms[1], samples=1)]))
    assert all(view(found) for view in (views.text, views.markdown))
    assert bool(found.missing) == (ms[0] == 0)


def test_text_has_a_line_per_case_and_aligned_columns(tmp_path):
    cases = [a_case(context) for context in (64, 1024)]
    found = compare(*two(tmp_path, [timed(case, 10) for case in cases], [timed(case, 123.456) for case in cases]))
    lines = views.text(found).splitlines()
    head = next(line for line in lines if line.startswith("outcome"))
    rows = [line for line in lines if line.startswith("slower ")]
    assert len(rows) == 2
    assert all(row.index("ttt-linear") == head.index("case") for row in rows)
    assert "12.346" in rows[0]


def test_times_per_token_have_the_ratio_of_the_row(tmp_path):
    found = compare(*two(tmp_path, [timed(a_case(), 35.5, tokens=40)], [timed(a_case(), 26.8, tokens=20)]))
    (line,) = (line for line in views.markdown(found).splitlines() if "B=2 T=64" in line)
    ratio, _, a, b = line.split(" | ")[1:5]
    assert float(b.replace(",", "")) / float(a) == pytest.approx(float(ratio), abs=0.001)


def test_all_views_escape_markup_of_records(tmp_path):
    evil = "<script>alert(1)</script>|x`"
    case = a_case(options=(("name", evil),))
    environment = on_gpu(commit="<b>", software={"<i>": "1"})
    runs = two(tmp_path, [timed(case, 10)], [timed(case, 10, environment), without(a_case(1), reason=evil)])
    write_site([run.folder for run in runs], tmp_path / "site")
    (page,) = (path.read_text() for path in (tmp_path / "site" / "compared").iterdir())
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    shown = views.markdown(compare(*runs))
    assert not [line for line in shown.splitlines() if "<script>" in line.replace("\\<", "").replace("\\>", "")]
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {len(views.COLUMNS) + 1}
