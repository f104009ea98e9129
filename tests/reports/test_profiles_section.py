import re
from pathlib import Path

import pytest

from harness.case import Case
from harness.catalogue import BackendEntry, Catalogue, SystemEntry
from harness.profile_record import Profile, write_profile
from harness.profile_region import NAME_LIMIT, Counters, Kernel
from harness.record import Record
from harness.run import Job, Planned, Run, RunFile
from harness.timer import Policy
from reports.profiles import KERNELS_SHOWN, script, section, style

CATALOGUE = Catalogue(
    (SystemEntry("ttt", "TTT <b>", "TTT", 0, "circle"),), (BackendEntry("fast", "the fast one", "solid"),)
)
COUNTERS = Counters(2, 9.0, 1e7, None, 1e9, {"sm": 44.0}, 61.0, None, {"barrier": 0.5, "selected": 0.2})


def case(system: str = "ttt", batch: int = 1) -> Case:
    return Case(system, "fast", "1.3b", "forward", batch, 2048)


def profile(of: Case, *kernels: Kernel, **changes: object) -> Profile:
    kernels = kernels or (Kernel("nvjet<script>", 4, 60.0, 168, 4096, COUNTERS), Kernel("_dual", 2, 30.0))
    busy = sum(kernel.time_us for kernel in kernels)
    values = {"units": 2, "region_us": busy + 10, "busy_us": busy, "kernels": kernels, "tools": {"nsys": "2025"}}
    return Profile(case=of, **(values | {"ceilings": {"copy_gbs": 3e3, "product_tflops": 6e2}} | changes))


def run_with(folder: Path, *profiles: Profile) -> Run:
    cases = [case(), case("ttt", 16)]
    job = Job("ttt", "fast", tuple(Planned(each) for each in cases))
    other = Job("mamba", "fast", (Planned(case("mamba")),))
    run = Run.create(folder / "run", RunFile("ttt-bench", 1, "measure", (job, other), CATALOGUE, Policy().to_dict()))
    with run.record_file(job) as file:
        file.append(Record(case(), "ok", samples_ms=[0.049, 0.05, 0.051], throttled=[False] * 3, stop="count"))
    for each in profiles:
        write_profile(run.folder, each)
    return run


def test_a_run_without_profiles_has_no_section(tmp_path: Path) -> None:
    assert section(run_with(tmp_path)).html is None


def test_the_section_compares_systems_of_one_work(tmp_path: Path) -> None:
    found = section(run_with(tmp_path, profile(case()), profile(case("mamba")), profile(case(batch=16))))
    assert found.html is not None
    assert found.html.count("<h3>") == 2
    assert found.html.count('class="profile-bar"') == 3
    assert found.data == {
        "profiles": {each.key: f"profile-{each.key}" for each in (case(), case(batch=16), case("mamba"))}
    }
    for anchor in found.data["profiles"].values():
        assert f'id="{anchor}"' in found.html
    assert "0.05 ms, recorded 0.05 ms (+0%)" in found.html
    assert "Matrix products 60%" in found.html
    assert "168" in found.html


def test_texts_cannot_become_markup(tmp_path: Path) -> None:
    html = section(run_with(tmp_path, profile(case(), notes=("a <note>",)))).html
    assert html is not None
    assert "TTT &lt;b&gt; on the fast one" in html
    assert "<script" not in html
    assert "a &lt;note&gt;" in html


def test_bars_of_a_group_have_one_scale(tmp_path: Path) -> None:
    half = profile(case("mamba"), Kernel("gemm", 1, 40.0))
    html = section(run_with(tmp_path, profile(case()), half)).html or ""
    bars = re.findall(r'<svg class="profile-bar".*?</svg>', html, re.DOTALL)
    ends = [
        sum(float(width) for width in re.findall(r'class="part-\w+" x="[\d.]+" width="([\d.]+)"', bar)) for bar in bars
    ]
    assert ends == [pytest.approx(1000, abs=0.1), pytest.approx(500, abs=0.1)]


def test_failures_say_why_and_skipped_cases_are_silent(tmp_path: Path) -> None:
    failed = Profile(case=case(batch=16), status="oom", reason="it did not fit")
    skipped = Profile(case=case("mamba"), status="skipped", reason="not here")
    html = section(run_with(tmp_path, profile(case()), failed, skipped)).html or ""
    assert "it did not fit" in html
    assert "not here" not in html


def test_a_case_adds_at_most_150_kb(tmp_path: Path) -> None:
    kernels = [Kernel(f"{n:04}" + "x" * (NAME_LIMIT - 4), 3, 1.0, 255, 99999, COUNTERS) for n in range(1000)]
    html = section(run_with(tmp_path, profile(case(), *kernels))).html or ""
    assert len(html.encode()) + len(script()) + len(style()) < 150_000
    assert html.count('<th scope="row" title=') == KERNELS_SHOWN
    assert "and 900 more kernels" in html
