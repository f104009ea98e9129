import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_profiles import CATALOGUE, COUNTERS, case, profile, run_with, section_of

from harness.schema.case import Case
from harness.schema.catalogue import AxisEntry
from harness.schema.policy import Policy
from harness.schema.profile import (
    NAME_LIMIT,
    TIMELINE_LIMIT,
    Kernel,
    Profile,
    Range,
    RangeKernel,
    Timeline,
    write_profile,
)
from harness.schema.record import Record
from harness.schema.run import Run
from harness.schema.run_file import Planned, RunFile, jobs_of
from harness.schema.work import Work
from reports.page.html import render
from reports.profiles.drawing import TABLE_ROWS, roofline, timeline, unplotted_share
from reports.profiles.section import script, section
from reports.publish import write_report
from reports.resources import source
from reports.site.entry import files_of


def test_a_run_without_profiles_has_no_section(tmp_path: Path) -> None:
    assert section_of(run_with(tmp_path)) is None


def test_the_section_groups_systems_by_work(tmp_path: Path) -> None:
    found = section_of(run_with(tmp_path, profile(case()), profile(case("mamba")), profile(case(batch=16))))
    assert found.html.count("<h3>") == 2
    assert found.html.count('class="profile-bar"') == 3
    assert found.anchors == {each.key: f"profile-{each.key}" for each in (case(), case(batch=16), case("mamba"))}
    for anchor in found.anchors.values():
        assert f'id="{anchor}"' in found.html
    assert "0.05000 ms of kernels and idle time, recorded 0.05000 ms (0.0%)" in found.html
    assert "the run has no recorded latency for this case" in found.html
    assert "GEMMs 60%" in found.html
    assert "168" in found.html


@pytest.mark.parametrize(("peaks", "explained"), [({"copy_gbs": 3e3}, True), ({"copy_gbs": None}, False), ({}, False)])
def test_lower_bounds_are_explained_where_there_are_peaks(
    tmp_path: Path, peaks: dict[str, float | None], explained: bool
) -> None:
    found = section_of(run_with(tmp_path, profile(case(), peaks=peaks)))
    assert "Cases of the same work share a scale." in found.html
    assert ("on a GPU of this model" in found.html) is explained


def test_fewer_concurrent_sequences_or_a_layer_have_their_own_group(tmp_path: Path) -> None:
    step = replace(case(batch=16), phase="generate")
    layer = replace(step, options=(("scope", "layer"),))
    generated = [replace(profile(each), case=each) for each in (step, replace(step, system="mamba"), layer)]
    record = Record(step, "ok", samples_ms=[0.05], throttled=[False], metrics={"sequences_at_once": 5.0})
    html = section([record], generated, CATALOGUE).html
    assert re.findall("<h3>(.*?)</h3>", html) == [
        "generate, 1.3b, batch 16 (5 concurrent), 2048 tokens",
        "generate, 1.3b, batch 16, 2048 tokens",
        "generate, 1.3b, batch 16, 2048 tokens, scope layer",
    ]


def test_the_section_gives_the_number_of_profiled_cases(tmp_path: Path) -> None:
    html = section_of(run_with(tmp_path, profile(case(batch=16)), profile(case("mamba")))).html
    assert "<p>Profiled: 0 of 1 measured cases.</p>" in html


def test_groups_after_the_first_are_collapsed_and_list_their_cases(tmp_path: Path) -> None:
    html = section_of(run_with(tmp_path, profile(case()), profile(case(batch=16)))).html
    assert (html.count('<details class="work">'), html.count('<details class="work" open>')) == (1, 1)
    assert html.count("<small>TTT &lt;b&gt; on the fast one 0.05 ms</small></summary>") == 2


def test_a_title_has_the_settings_that_differ_in_the_group(tmp_path: Path) -> None:
    def titles(*cases: Case) -> list[str]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        catalogue = replace(CATALOGUE, axes=(AxisEntry("state_dtype", "State", "state {}"),))
        jobs = jobs_of(map(Planned, cases))
        run = Run.create(folder / "run", RunFile("measure", "cuda", jobs, catalogue, Policy()))
        for each in cases:
            write_profile(run.folder, profile(each))
        return sorted(
            re.findall(r'<p class="profiled"><b>TTT &lt;b&gt; on the fast one(.*?)</b>', section_of(run).html)
        )

    ours, mamba = case(), case("mamba")
    planes, half = (replace(ours, state_dtype=state) for state in ("float32-planes", "float16"))
    assert titles(ours, replace(mamba, state_dtype="bfloat16", timing="engine")) == [""]
    assert titles(planes, half, ours) == ["", ", state float16", ", state float32-planes"]
    assert titles(ours, replace(ours, timing="graph")) == [", timing eager", ", timing graph"]
    assert titles(ours, replace(mamba, dtype="float16")) == [", dtype bfloat16"]
    assert titles(ours, replace(ours, l2="cold", options=(("form", "dual"),))) == [", l2 cold, form dual", ", l2 warm"]


def test_texts_cannot_become_markup(tmp_path: Path) -> None:
    html = section_of(
        run_with(tmp_path, profile(case(), notes=("a <note>'\"",), timeline=Timeline((0,), (-1,), (0,), (9,))))
    ).html
    assert html is not None
    assert "TTT &lt;b&gt; on the fast one" in html
    assert "nvjet<script" not in html
    assert "<note" not in html
    assert "a &lt;note&gt;" in html


def test_bars_of_a_group_have_one_scale(tmp_path: Path) -> None:
    half = profile(case("mamba"), Kernel("gemm", 1, 40.0))
    html = section_of(run_with(tmp_path, profile(case()), half)).html
    bars = re.findall(r'<svg class="profile-bar".*?</svg>', html, re.DOTALL)
    ends = [sum(float(width) for width in re.findall(r'part-\w+\)" x="[\d.]+" width="([\d.]+)"', bar)) for bar in bars]
    assert ends == [pytest.approx(1000, abs=0.1), pytest.approx(500, abs=0.1)]


def test_rows_are_per_unit_of_work(tmp_path: Path) -> None:
    html = section_of(run_with(tmp_path, profile(case()))).html
    table = html[html.index('<table class="kernels">') :]
    headings, *rows = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>.*?</tr>", table))
    first, second = (dict(zip(headings, row, strict=True)) for row in rows[:2])
    assert [first[name] for name in ("Time (ms)", "Share (%)", "Launches", "Lower bound (ms)")] == [
        "0.0300",
        "66.7",
        "2",
        "0.0067",
    ]
    assert [first[name] for name in ("GB/s", "TFLOP/s", "FLOP/byte")] == ["667", "66.7", "100.0"]
    assert [first[name] for name in ("Registers", "Shared (kB)", "Occupancy (%)", "L2 hits (%)")] == [
        "168",
        "4.1",
        "61",
        "72",
    ]
    assert (first["Warps stall"], second["Warps stall"]) == ("on barriers 50%", "")
    columns = ("Time (ms)", "GB/s", "TFLOP/s", "Lower bound (ms)")
    assert [second[name] for name in columns] == ["0.0150", "", "", ""]


def widths_of(html: str, name: str) -> list[float]:
    bar = html[html.index('<svg class="profile-bar"') :].partition("</svg>")[0]
    return [float(width) for width in re.findall(rf'{name}[)"][^>]*width="([\d.]+)"', bar)]


def test_the_lower_bound_of_a_case_is_per_unit_and_needs_all_parts(tmp_path: Path) -> None:
    def shown(name: str, **work: Work) -> str:
        return section_of(run_with(tmp_path / name, profile(case(), work=work))).html

    # Two units took 60 us and 30 us; the lower bounds of one are 10 us and 5 us.
    both = shown("both", products=Work(6e9, 3e6), ttt=Work(3e9, 0))
    assert "; 0.015 ms if every part ran at its lower bound" in both
    assert widths_of(both, "lower-bound") == pytest.approx([200, 100])
    partly = shown("partly", products=Work(6e9, 3e6), edges=Work(0, 0))
    assert "if every part ran at its lower bound" not in partly
    # A part may be faster than its lower bound; the strip then is as wide as the part.
    fast = shown("fast", products=Work(60e9, 0), ttt=Work(3e9, 0))
    assert widths_of(fast, "lower-bound")[0] == widths_of(fast, "part-products")[0]


def test_failed_cases_have_their_reason_and_skipped_cases_are_omitted(tmp_path: Path) -> None:
    failed = Profile(case=case(batch=16), status="oom", reason="it did not fit")
    skipped = Profile(case=case("mamba"), status="skipped", reason="not here")
    html = section_of(run_with(tmp_path, profile(case()), failed, skipped)).html
    assert "it did not fit" in html
    assert "not here" not in html


def test_a_case_with_1000_long_names_has_at_most_150_kb(tmp_path: Path) -> None:
    kernels = [Kernel(f"{n:04}" + "x" * (NAME_LIMIT - 4), 3, 1.0, 255, 99999, COUNTERS) for n in range(1000)]
    launches = range(TIMELINE_LIMIT)
    longest = Timeline(
        tuple(n % 1000 for n in launches),
        tuple(-1 for _ in launches),
        (9999,) * len(launches),
        (123456,) * len(launches),
    )
    html = section_of(run_with(tmp_path, profile(case(), *kernels, timeline=longest))).html
    assert len(html.encode()) + len(script()) + len(source("profiles/section.css")) < 150_000
    assert html.count('<th scope="row" title=') == TABLE_ROWS
    assert "900 more kernels are in the profile's file." in html


def test_roofline_points_come_from_counters_and_times() -> None:
    counted, idle = COUNTERS, replace(COUNTERS, operations=0.0)
    found = profile(
        case(), Kernel("gemm", 4, 60.0, counters=counted), Kernel("idle", 1, 5.0, counters=idle), Kernel("odd", 1, 35.0)
    )
    drawn = roofline(found)
    # 1e9 FLOPs and 1e7 bytes in 15 us
    assert drawn["points"] == [(0, 100.0, 66.67, 0.03, None, False)]
    assert (drawn["l2_gbs"], drawn["fp32_tflops"]) == (None, None)
    assert (drawn["copy_gbs"], drawn["product_tflops"]) == (3000.0, 600.0)
    assert unplotted_share(found) == pytest.approx(0.4)
    assert unplotted_share(profile(case(), Kernel("gemm", 4, 60.0, counters=counted))) == 0.0


def test_the_roofline_of_a_norm_has_l2_and_fp32_peaks() -> None:
    norm = replace(COUNTERS, l2_bytes=4e7, use={"tensor": 0.0}, l2_peak_gbs=13_088.4, fp32_peak_tflops=67.68)
    slower = replace(COUNTERS, l2_peak_gbs=12_000.0, fp32_peak_tflops=60.0)
    drawn = roofline(profile(case(), Kernel("norm", 4, 60.0, counters=norm), Kernel("gemm", 1, 30.0, counters=slower)))
    assert (drawn["l2_gbs"], drawn["fp32_tflops"]) == (13_090.0, 67.68)
    assert drawn["points"][0] == (0, 100.0, 66.67, 0.03, 25.0, True)
    assert drawn["points"][1][4:] == (None, False)


def test_without_counters_whole_parts_have_points(tmp_path: Path) -> None:
    found = profile(case(), Kernel("gemm", 4, 60.0), Kernel("_dual", 2, 30.0), work={"products": Work(6e9, 3e7)})
    assert roofline(found)["points"] == []
    both = replace(found, work={"products": Work(6e9, 3e7), "ttt": Work(0, 5)})
    # of two units in 60 us
    assert roofline(both)["parts"] == [(0, 200.0, 200.0, 0.03)]
    html = section_of(run_with(tmp_path, both)).html
    assert "Roofline: one point per part, from the least FLOPs and bytes of the model" in html
    assert "has no point" not in html
    assert "GB/s" not in html
    assert "the same numbers are in the table" not in html
    assert "or of a faster kernel" not in html
    assert "<td>the model&#39;s FLOPs and bytes</td>" in html
    bare = section_of(run_with(tmp_path / "bare", replace(found, work={}, peaks={}))).html
    assert "No process on this device measured peaks, so there is no roofline." in bare


def test_a_timeline_has_the_paths_and_parts_of_its_launches(tmp_path: Path) -> None:
    ranges = (Range(("forward", "layer 0", "operator"), (RangeKernel(1, 1, 9.0),)),)
    found = profile(case(), ranges=ranges, timeline=Timeline((1, 0), (0, -1), (0, 70), (9000, 8000), 5))
    drawn = timeline(found)
    assert drawn["paths"] == [("forward", "layer 0", "operator")]
    request = [Range(path, ()) for path in (("request",), ("request", "generate", "layer 0"))]
    assert timeline(replace(found, ranges=tuple(request)))["paths"] == [("request",), ("generate", "layer 0")]
    assert (drawn["kernel"], drawn["part"]) == ([1, 0], [1, 0])
    html = section_of(run_with(tmp_path, found)).html
    assert "2 launches in 0.01707 ms; 5 later ones are not drawn." in html
    assert "no launch times" not in html
    without = section_of(run_with(tmp_path / "without", profile(case()))).html
    assert "This profile has no launch times, so there is no timeline." in without


@pytest.mark.parametrize("write", [write_report, lambda folder, _: files_of(Run.open(folder), "id")])
def test_a_page_reads_its_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., object]
) -> None:
    run = run_with(tmp_path, profile(case()))
    read: list[str] = []

    def counting(name: str) -> Callable[[Run], object]:
        original = getattr(Run, name)
        return lambda self: read.append(name) or original(self)

    for name in ("records", "profiles"):
        monkeypatch.setattr(Run, name, counting(name))
    write(run.folder, tmp_path / "page.html")
    assert sorted(read) == ["profiles", "records"]


def test_the_page_links_rows_to_profiles(tmp_path: Path) -> None:
    run = run_with(tmp_path, profile(case()), profile(case("mamba")))
    [measured] = run.records()
    other = replace(measured, case=case("ttt", 16))
    records = [other, measured, replace(measured, repeat=1)]  # two rows: the processes of a case share one
    page = render(records, run.catalogue, run.profiles().values())[0]
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', page).group(1))
    assert data["profiles"] == {"1": f"profile-{case().key}"}
    assert 'href="#profiles"' in page
    bare = render(run.records(), run.catalogue)[0]
    assert json.loads(re.search(r'id="page-data">(.*?)</script>', bare).group(1))["profiles"] == {}
