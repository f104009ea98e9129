"""Comparing two profiles lists differences of kernels and of parts such as idle time, and a slowdown's bottleneck."""

from dataclasses import replace
from pathlib import Path

import pytest
from small_profiles import case, profile, run_with, section_of

from harness.schema.profile import Counters, Kernel, Profile
from reports.profiles.diff import Diff, TimeDiff, diff_of_runs
from reports.site.build import write_site

BUSY = Counters(1, 20.0, use={"sm": 44.0, "l2": 30.0, "dram": 20.0, "tensor": 33.0}, stalls={"barrier": 0.34})


def build(*kernels: Kernel, idle_us: float = 0.0, **changes: object) -> Profile:
    busy = sum(kernel.time_us for kernel in kernels)
    return profile(case(), *kernels, units=1, region_us=busy + idle_us, busy_us=busy, **changes)


FAST = build(Kernel("gemm", 2, 600.0), Kernel("linear_forward", 2, 300.0), idle_us=100.0)
SLOW = build(Kernel("gemm", 2, 565.0), Kernel("mlp_forward", 2, 542.0, counters=BUSY), idle_us=103.0)


def test_the_sentence_names_the_parts_and_the_bottleneck_of_the_kernel_that_differs() -> None:
    assert Diff(FAST, SLOW, "TTT-Linear", "TTT-MLP").sentence == (
        "0.210 ms (21.0%) slower than TTT-Linear: TTT kernel +0.242 ms, GEMMs −0.0350 ms. "
        "mlp_forward: no unit above 60% (SM pipelines 44%): latency-bound; warps stall on barriers 34% of the time."
    )


@pytest.mark.parametrize(
    ("a", "b", "sentence"),
    [
        (SLOW, FAST, "0.210 ms (17.4%) faster than A: TTT kernel −0.242 ms, GEMMs +0.0350 ms."),
        (FAST, FAST, "As fast as A."),
        # A slowdown of at most `TOLERANCE` gets no bottleneck.
        (FAST, replace(FAST, region_us=1020.0), "0.0200 ms (2.0%) slower than A: idle +0.0200 ms."),
        (
            FAST,
            replace(FAST, region_us=1300.0, longest_gap_us=1.0),
            "0.300 ms (30.0%) slower than A: idle +0.300 ms. Idle time: CPU launch overhead.",
        ),
        # Without counters, a kernel has no bottleneck.
        (
            SLOW,
            build(Kernel("gemm", 1, 2e3)),
            "0.790 ms (65.3%) slower than A: GEMMs +1.44 ms, TTT kernel −0.542 ms, others −0.103 ms.",
        ),
    ],
)
def test_sentences_of_other_differences(a: Profile, b: Profile, sentence: str) -> None:
    assert Diff(a, b, "A", "B").sentence == sentence


def test_the_kernel_table_has_times_per_unit_of_work_with_the_largest_difference_first() -> None:
    twice = build(Kernel("void gemm<1>(int)", 2, 700.0), Kernel("void gemm<2>(int)", 2, 430.0), Kernel("_dual", 2, 4.0))
    assert Diff(FAST, replace(twice, units=2), "A", "B").tables[1][1] == [
        TimeDiff("linear_forward", 0.3, None),
        TimeDiff("gemm", 0.6, 0.565),
        TimeDiff("_dual", None, 0.002),
    ]


def test_kernels_beyond_the_table_are_summed() -> None:
    many = build(*(Kernel(f"k{number}", 1, 100.0 - number) for number in range(14)))
    (_, _, nothing), (_, rows, omitted) = Diff(FAST, many, "A", "B").tables
    assert (len(rows), nothing, omitted) == (12, "", "4 more kernels: +0.354 ms together")


def test_a_slower_case_is_compared_with_each_faster_one_of_its_group(tmp_path: Path) -> None:
    slower = replace(SLOW, case=case("mamba"))
    html = section_of(run_with(tmp_path, FAST, slower, replace(SLOW, case=case(batch=16)))).html
    assert html.count("slower than") == 1
    assert "<summary>0.210 ms (21.0%) slower than TTT &lt;b&gt;: TTT kernel +0.242 ms" in html
    assert '<tr><th scope="row">TTT kernel</th><td>0.300</td><td>0.542</td><td>+0.242</td></tr>' in html


def test_two_runs_are_compared_by_the_cases_that_both_profiled(tmp_path: Path) -> None:
    a = run_with(tmp_path / "a", FAST, replace(FAST, case=case("mamba")))
    b = run_with(tmp_path / "b", SLOW, replace(FAST, case=case(batch=16)))
    html = diff_of_runs(a, b, ("a", "b"))
    assert html.count("<summary>") == 1
    assert "0.210 ms (21.0%) slower than a: TTT kernel" in html
    assert diff_of_runs(a, run_with(tmp_path / "none"), ("a", "b")) == ""


def test_a_site_compares_the_profiles_of_the_runs_that_it_compares(tmp_path: Path) -> None:
    runs = [run_with(tmp_path / name, *own).folder for name, own in {"a": [FAST], "b": [SLOW], "c": []}.items()]
    write_site(runs, tmp_path / "site")
    pages = {path.stem.count("c-run"): path.read_text() for path in (tmp_path / "site" / "compared").iterdir()}
    assert "<summary>0.210 ms (21.0%) slower than a-run: TTT kernel +0.242 ms" in pages[0]
    assert "<summary>" not in pages[1]


def test_the_bottleneck_is_of_the_kernel_that_grew_most_in_its_part() -> None:
    slow = build(Kernel("_primal", 1, 100.0), Kernel("mlp_forward", 1, 1200.0, counters=BUSY))
    assert ". mlp_forward: no unit above 60%" in Diff(FAST, slow, "A", "B").sentence
