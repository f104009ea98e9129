from dataclasses import fields, replace
from typing import Any

import pytest

from harness.schema.case import Case
from harness.schema.catalogue import Catalogue
from harness.schema.profile import Counters, Kernel, Profile, Range, RangeKernel, Region, Timeline
from harness.schema.record import Record
from harness.schema.work import Work
from reports.profiles.parts import (
    EDGES,
    HEAD,
    IDLE,
    OTHER,
    PRODUCTS,
    SCAN,
    TTT,
    kernel_lower_bound_us,
    kernel_parts,
    launch_parts,
    part_of,
    parts,
)
from reports.profiles.peaks import raised_peaks, with_common_peaks
from reports.profiles.words import Recorded, agreement, bound_of, recorded, sentences, short
from reports.stats import frame

PEAKS: dict[str, float | None] = {"copy_gbs": 3000.0, "product_tflops": 600.0}


def counted(**changes: object) -> Counters:
    values: dict = {"launches": 1, "time_us": 100.0, "use": {"sm": 30.0, "l2": 41.0, "dram": 20.0, "tensor": 0.0}}
    return Counters(**(values | {"stalls": {"selected": 0.5, "barrier": 0.34, "wait": 0.1}} | changes))


def region(*kernels: Kernel, idle: float = 0.0, ranges: tuple[Range, ...] = ()) -> Region:
    busy = sum(kernel.time_us for kernel in kernels)
    return Region(1, busy + idle, busy, idle, kernels, ranges, PEAKS)


def profile_of(of: Region, **changes: Any) -> Profile:
    return Profile(**({field.name: getattr(of, field.name) for field in fields(Region)} | changes))


def gemm_region(**changes: object) -> Region:
    return region(Kernel("void at::gemm<4>(int)", 2, 200.0, counters=counted(**changes)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dram_bytes": 2.73e8}, "91% of peak bandwidth: memory-bound"),
        # The counted launch took 400 us and moved four times the bytes of a mean launch.
        (
            {"dram_bytes": 10.92e8, "time_us": 400.0},
            "91% of peak bandwidth in the counted launches (400 µs; mean 100 µs): memory-bound",
        ),
        ({"operations": 5.1e10}, "85% of the peak GEMM rate: compute-bound"),
        (
            {"operations": 5.1e10, "use": {"tensor": 91.4}},
            "85% of the peak GEMM rate: compute-bound, tensor cores busy 91% of the time",
        ),
        (
            {"dram_bytes": 1.9e8, "operations": 5.1e10},
            "85% of the peak GEMM rate: compute-bound",
        ),
        ({"operations": 6e9, "fp32_peak_tflops": 66.7}, "90% of the FP32 peak: compute-bound"),
        (
            {"operations": 6e9, "fp32_peak_tflops": 66.7, "use": {"sm": 30.0, "l2": 41.0, "dram": 9.0, "tensor": 20.0}},
            "no unit above 60% (L2 41%): latency-bound; warps stall on barriers 34% of the time",
        ),
        ({"use": {"sm": 20.0, "l2": 78.0}}, "bound by L2 at 78% of peak"),
        ({}, "no unit above 60% (L2 41%): latency-bound; warps stall on barriers 34% of the time"),
        ({"stalls": {}}, "no unit above 60% (L2 41%): latency-bound"),
        ({"use": {}}, "utilization not measured"),
        # Cases close to those above: unknown units, no stalls, just below or above 60%.
        (
            {"use": {"sm": 30.0, "l2": 41.0}},
            "L2 at 41% of peak, DRAM and tensor cores not counted: bottleneck unknown",
        ),
        ({"stalls": {"selected": 0.996, "wait": 0.004}}, "no unit above 60% (L2 41%): latency-bound"),
        ({"dram_bytes": 1.79e8}, "no unit above 60% (L2 41%): latency-bound; warps stall on barriers 34% of the time"),
        (
            {"operations": 3.59e10, "use": {"sm": 88.0}},
            "bound by SM pipelines at 88% of peak",
        ),
    ],
)
def test_the_bottleneck_of_a_kernel(changes: dict, words: str) -> None:
    found = gemm_region(**changes)
    assert bound_of(found.kernels[0], found) == words


def test_without_counters_the_bottleneck_is_unknown() -> None:
    found = replace(region(Kernel("small", 1, 0.1), Kernel("gemm", 9, 79.9), idle=20.0), longest_gap_us=3.0)
    assert sentences(found) == (
        "GEMMs 80% of the time; idle 20%, 2.0 µs per launch: CPU launch overhead.",
        "gemm (80% of the time): bottleneck unknown without hardware counters.",
    )


def test_without_peaks_no_kernel_is_memory_or_compute_bound() -> None:
    found = replace(gemm_region(dram_bytes=2.73e8, operations=5.1e10), peaks={})
    assert bound_of(found.kernels[0], found).startswith("no unit above 60%")


def test_the_lower_bound_of_a_norm_uses_the_fp32_peak() -> None:
    """Two 6-GFLOP launches take 200 µs in total at 60 TFLOP/s (FP32), 20 µs at 600 TFLOP/s (GEMM)."""
    norm = gemm_region(operations=6e9, dram_bytes=1.0, fp32_peak_tflops=60.0).kernels[0]
    gemm = gemm_region(operations=6e9, dram_bytes=1.0).kernels[0]
    assert [kernel_lower_bound_us(each, region(each)) for each in (norm, gemm)] == pytest.approx([200.0, 20.0])


@pytest.mark.parametrize(
    ("time_us", "rates", "counted_us", "peaks"),
    [  # a kernel's time, its GB/s and TFLOP/s, and the time of its counted launches
        (100.0, (3300.0, 660.0), 100.0, (3300.0, 660.0)),
        (1.0, (3300.0, 660.0), 1.0, (3300.0, 660.0)),  # 1% of the kernels' time
        (0.4, (3300.0, 660.0), 0.4, (3000.0, 600.0)),  # too short
        (100.0, (4000.0, 900.0), 100.0, (3000.0, 600.0)),  # a third more than measured: miscounted
        (100.0, (3000.0, 600.0), 110.0, (3300.0, 660.0)),
        (100.0, (4125.0, 825.0), 80.0, (3000.0, 600.0)),  # the counted launches were far shorter
        (100.0, (2750.0, 550.0), 120.0, (3000.0, 600.0)),  # or far longer
    ],
)
def test_a_kernel_above_a_peak_raises_it_unless_it_is_short_or_miscounted(
    time_us: float, rates: tuple[float, float], counted_us: float, peaks: tuple[float, float]
) -> None:
    work = {"dram_bytes": rates[0] * 1e3 * counted_us, "operations": rates[1] * 1e6 * counted_us}
    fast = Kernel("fast", 1, time_us, counters=counted(time_us=counted_us, **work))
    found = raised_peaks(region(fast, Kernel("rest", 1, 100.0 - min(time_us, 99.0))))
    assert (found["copy_gbs"], found["product_tflops"]) == pytest.approx(peaks)
    assert raised_peaks(replace(region(fast), peaks={})) == {}


@pytest.mark.parametrize(
    ("name", "longest", "words"),
    [
        ("gemm", 8.0, "Mostly idle: CPU launch overhead."),
        ("aten::mm", 8.0, "Mostly idle: Python overhead."),
        ("Torch-Compiled Region: 0/0", 8.0, "Mostly idle: Python overhead."),
        ("gemm", 41.0, "Mostly idle: one long wait for the host."),
    ],
)
def test_a_mostly_idle_region_has_no_kernel_as_bottleneck(name: str, longest: float, words: str) -> None:
    kernel = Kernel(name, 40, 20.0, counters=counted(dram_bytes=2.73e8))
    found = replace(region(kernel, idle=80.0), longest_gap_us=longest)
    assert sentences(found)[1] == words
    assert ("one wait of 0.041 ms" in sentences(found)[0]) is (longest > 40)


def test_the_cause_of_idle_time_by_timing() -> None:
    case = Case("ttt-mlp", "thunderkittens", "1.3b", "generate", 1, 2048, timing="graph")
    found = profile_of(region(Kernel("gemm", 40, 20.0), idle=80.0), longest_gap_us=2.0, case=case)
    assert sentences(found)[1] == "Mostly idle: launch latency within the CUDA graph."
    engine = replace(found, case=replace(case, timing="engine"), units=16)  # 30 us between two steps
    assert sentences(engine)[1] == "Mostly idle: CPU launch overhead."
    engine = replace(engine, longest_gap_us=4.0)
    assert sentences(engine)[1] == "Mostly idle: the engine's CPU work between steps."
    assert "idle 80%, 5.0 µs per step: the engine's CPU work between steps" in sentences(engine)[0]
    eager = replace(found, case=replace(case, timing="eager"))
    assert sentences(eager)[1] == "Mostly idle: CPU launch overhead."


def test_sentences_without_kernel_time() -> None:
    assert sentences(region(Kernel("gemm", 1, 0.0))) == ("Nothing ran.", "No kernel took time.")
    assert sentences(region(Kernel("gemm", 1, 0.01), idle=99.0))[0] == "Idle 100%, most of it in one wait of 0.099 ms."


def test_profiled_time_is_compared_with_the_record() -> None:
    found = region(Kernel("gemm", 1, 9000.0), idle=1000.0)
    assert agreement(found, Recorded(9.8)) == "10.00 ms of kernels and idle time, recorded 9.800 ms (+2.0%)"
    assert "(+4.2%: not within 3%" in agreement(found, Recorded(9.6))
    assert "(−4.8%: not within 3%" in agreement(found, Recorded(10.5))
    assert "(+3.0%: not within 3%)" in agreement(found, Recorded(9.708))
    assert agreement(found, Recorded(10.001)).endswith("(0.0%)")
    on_cpu = region(Kernel("quantized::linear_dynamic", 1, 8000.0), Kernel("aten::mm", 1, 1000.0))
    assert agreement(on_cpu, Recorded(6.0)).endswith("(+50.0%)")
    assert agreement(found, None).endswith("no recorded latency for this case")


def test_the_recorded_latency_is_the_median_of_the_processes() -> None:
    case = Case("a", "b", "c", "forward", 1, 8)
    records = [Record(case, "ok", samples_ms=[each] * 3, throttled=[False] * 3) for each in (1.0, 2.0, 9.0)]
    lost = Record(replace(case, batch=2), "failed", "it broke")
    assert recorded([*records, lost]) == {case.key: Recorded(2.0, concurrent=1)}


@pytest.mark.parametrize(
    ("phase", "limits", "concurrent"),
    [("generate", (21, 20, 600), 20), ("generate", (600,), 512), ("forward", (21, 20, 600), 512)],
)
def test_concurrent_sequences_of_a_record(phase: str, limits: tuple[int, ...], concurrent: int) -> None:
    case = Case("a", "b", "c", phase, 512, 8)
    records = [
        Record(case, "ok", samples_ms=[1.0], throttled=[False], metrics={"sequences_at_once": float(each)}, repeat=n)
        for n, each in enumerate(limits)
    ]
    assert recorded(records)[case.key].concurrent == concurrent


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", PRODUCTS),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<int> > >(int)", SCAN),
        ("_dual", TTT),
        ("void linear_forward<layout<16> >(globals)", TTT),
        ("void forward_kernel<bf16>(globals)", TTT),
        ("_residual_convolution", EDGES),
        ("_few_rows_product", PRODUCTS),
        ("_swiglu", EDGES),
        ("ttt::swiglu_product(ttt::layout::globals)", PRODUCTS),
        ("_query_key", EDGES),
        ("_rms_norm_forward_kernel", EDGES),
        ("causal_conv1d_fwd_kernel", EDGES),
        ("kernel_mha", SCAN),  # FlashInfer's for Hopper
        ("void BatchDecodeWithPagedKVCacheKernel<2>(Params)", SCAN),
        ("_chunk_scan_fwd_kernel", SCAN),
        ("selective_state_update", SCAN),
        ("void vllm::act_and_mul_kernel<bf16>(int)", EDGES),
        ("void at::native::vectorized_elementwise_kernel<4, add>(int)", EDGES),
        ("aten::mm", PRODUCTS),
        ("aten::mul", EDGES),
        ("triton_poi_fused_add_cat_index_select_mul_split_3", EDGES),
        ("Memcpy DtoD", OTHER),
        ("void at::native::indexSelectLargeIndex<bf16>(int)", OTHER),
    ],
)
def test_parts_by_name(name: str, part: str) -> None:
    assert part_of(name) == part
    assert part_of(name, ("forward", "layer 3", "operator"), True) == TTT
    assert part_of(name, ("forward",), True) == (HEAD if part == PRODUCTS else part)
    assert part_of(name, ("forward", "layer 3"), True) == part_of(name, ("forward",)) == part


def test_gemms_of_steps_without_layers_are_not_the_heads() -> None:
    ranges = (
        Range(("request", "forward", "layer 0"), (RangeKernel(0, 3, 30.0),)),
        Range(("request", "forward"), (RangeKernel(0, 1, 10.0),)),
        Range(("request", "generate"), (RangeKernel(1, 8, 60.0),)),
    )
    found = region(Kernel("gemm", 4, 40.0), Kernel("nvjet", 8, 60.0), ranges=ranges)
    assert [(part.name, part.time_us) for part in parts(found)] == [(PRODUCTS, 100.0)]
    layers = Range(("request", "generate", "layer 0"), (RangeKernel(1, 8, 20.0),))
    both = replace(found, ranges=(*ranges, layers))
    assert {part.name: part.time_us for part in parts(both)} == {PRODUCTS: 45.0, HEAD: 55.0}
    work = {PRODUCTS: Work(6e9, 0), HEAD: Work(3e9, 0)}  # 10 and 5 us at 600 TFLOP/s
    alone = replace(region(Kernel("gemm", 4, 40.0), ranges=ranges[:2]), work=work)
    assert [(part.label, part.time_us) for part in parts(alone)] == [("GEMMs", 30.0), ("Head", 10.0)]
    assert [part.lower_bound_us for part in parts(alone)] == pytest.approx([10.0, 5.0])
    [gemms] = parts(replace(found, work=work))
    assert (gemms.label, gemms.lower_bound_us) == ("GEMMs, with the head", pytest.approx(15.0))


def test_profiles_on_one_gpu_model_share_the_highest_peaks() -> None:
    def on(device: str, tflops: float, **changes: object) -> Profile:
        case, peaks = Case("a", "b", "c", "forward", 1, 8), {"product_tflops": tflops}
        return profile_of(gemm_region(**changes), peaks=peaks, case=case, environment={"device": device})

    found = with_common_peaks(
        [on("H100", 600.0), on("H100", 700.0), on("H200", 500.0, operations=5.5e10), on("H100", 650.0)]
    )
    assert [each.peaks["product_tflops"] for each in found] == [700.0, 700.0, pytest.approx(550.0), 700.0]


def test_records_and_profiles_of_a_run_have_the_same_peaks() -> None:
    case, environment = Case("a", "b", "c", "forward", 1, 8), {"device": "H100"}
    peaks = {"product_tflops": 600.0, "copy_gbs": 2000.0}
    profile = profile_of(gemm_region(operations=6.5e10), peaks=peaks, case=case, environment=environment)
    measured = {"product_tflops": 500.0, "copy_gbs": 3000.0, "flops": 6.5e10, "bytes": 1.0}
    record = Record(case, "ok", samples_ms=[1.0], throttled=[False], metrics=measured, environment=environment)
    [found] = with_common_peaks([profile], [record])
    assert found.peaks == {"product_tflops": pytest.approx(650.0), "copy_gbs": 3000.0}
    for profiles, lower_bound_ms in (([], 0.13), ([profile], 0.1)):
        table = frame([record], Catalogue(), profiles)
        assert list(table["lower_bound_ms"]) == [pytest.approx(lower_bound_ms)]


def test_the_lower_bound_of_an_almost_covered_part_is_scaled_to_the_whole_part() -> None:
    gemm = Kernel("gemm", 1, 190.0, counters=counted(time_us=190.0, dram_bytes=2.85e8))  # 95 us at a copy's rate
    [gemms] = parts(region(gemm, Kernel("other_gemm", 1, 10.0)))
    assert gemms.lower_bound_us == pytest.approx(95.0 * 200 / 190)


def test_the_lower_bound_of_a_kernel_in_two_parts_is_split_like_its_time() -> None:
    ranges = (
        Range(("forward", "layer 0"), (RangeKernel(0, 3, 30.0),)),
        Range(("forward",), (RangeKernel(0, 1, 10.0),)),
    )
    gemm = Kernel("gemm", 4, 80.0, counters=counted(time_us=20.0, dram_bytes=3e7))  # 10 us of 20 us
    found = {part.name: part.lower_bound_us for part in parts(region(gemm, ranges=ranges))}
    assert found == {PRODUCTS: pytest.approx(30.0), HEAD: pytest.approx(10.0)}
    # A counted kernel that is only a quarter of a part does not bound the part.
    partly = region(
        gemm, Kernel("another_gemm", 1, 40.0), ranges=(*ranges, Range(("forward",), (RangeKernel(1, 1, 4.0),)))
    )
    assert {part.name: part.lower_bound_us for part in parts(partly)} == {PRODUCTS: pytest.approx(30.0), HEAD: None}


@pytest.mark.parametrize(("inside", "part"), [(30.0, PRODUCTS), (3.0, HEAD)])
def test_a_kernel_in_two_parts_is_listed_in_the_longer_one(inside: float, part: str) -> None:
    ranges = (
        Range(("forward", "layer 0"), (RangeKernel(0, 3, inside),)),
        Range(("forward",), (RangeKernel(0, 1, 10.0),)),
    )
    found = region(Kernel("gemm", 4, 80.0), Kernel("odd", 1, 1.0), ranges=ranges)
    assert kernel_parts(found) == {"gemm": part, "odd": OTHER}
    timeline = Timeline((0, 0, 0, 1), (0, 1, -1, -1), (0, 1, 1, 1), (5, 5, 5, 5))
    assert launch_parts(replace(found, timeline=timeline)) == [PRODUCTS, HEAD, part, OTHER]


def test_a_kernel_in_two_ranges_is_split_between_their_parts() -> None:
    ranges = (
        Range(("forward", "layer 0"), (RangeKernel(0, 3, 30.0),)),
        Range(("forward", "layer 0", "operator"), (RangeKernel(1, 1, 5.0),)),
        Range(("forward",), (RangeKernel(0, 1, 10.0),)),
    )
    found = region(Kernel("gemm", 8, 80.0), Kernel("odd", 2, 12.0), idle=8.0, ranges=ranges)
    assert {part.name: (part.time_us, part.launches) for part in parts(found)} == {
        PRODUCTS: (60.0, 6),
        TTT: (12.0, 2),
        HEAD: (20.0, 2),
        IDLE: (8.0, 0),
    }


def test_overlapping_kernels_add_up_to_the_busy_time() -> None:
    found = replace(region(Kernel("gemm", 1, 80.0), Kernel("_dual", 1, 40.0)), busy_us=90.0, region_us=100.0)
    assert [(part.name, part.time_us) for part in parts(found)] == [(PRODUCTS, 60.0), (TTT, 30.0), (IDLE, 10.0)]


def test_lower_bounds_of_overlapping_parts_are_scaled_like_their_times() -> None:
    work = {PRODUCTS: Work(4.2e10, 0), TTT: Work(0, 9e7)}  # 70 us at 600 TFLOP/s, 50 at 1.8 TB/s
    both = region(Kernel("gemm", 1, 80.0), Kernel("_dual", 1, 80.0))
    found = replace(both, busy_us=80.0, region_us=80.0, work=work)
    serial = {part.name: part.lower_bound_us for part in parts(replace(found, busy_us=160.0, region_us=160.0))}
    assert {part.name: part.lower_bound_us for part in parts(found)} == {
        name: bound / 2 for name, bound in serial.items()
    }
    assert all(part.lower_bound_us < part.time_us for part in parts(found))


def test_a_lower_bound_is_the_longer_of_memory_and_compute_time() -> None:
    found = gemm_region(dram_bytes=9e7, operations=3e10)
    assert kernel_lower_bound_us(found.kernels[0], found) == pytest.approx(2 * 50.0)
    assert kernel_lower_bound_us(found.kernels[0], replace(found, peaks={})) is None
    assert parts(found)[0].lower_bound_us == pytest.approx(100.0)
    half = region(found.kernels[0], Kernel("other_gemm", 1, 200.0))
    assert parts(half)[0].lower_bound_us is None  # half of the part was not counted


def test_the_adapters_count_takes_precedence_over_counters() -> None:
    work = {PRODUCTS: Work(3e10, 9e7), HEAD: Work(3e9, 6e6), SCAN: Work(1e9, 1e6)}
    with_counters = replace(gemm_region(dram_bytes=9e7), work=work, units=2)
    for found in (with_counters, replace(with_counters, kernels=(replace(with_counters.kernels[0], counters=None),))):
        [gemms] = parts(found)
        assert gemms.from_adapter
        assert gemms.lower_bound_us == pytest.approx(2 * 55.0)  # with the head's GEMMs, which no range separates
    assert not parts(gemm_region(dram_bytes=9e7))[0].from_adapter
    assert parts(replace(with_counters, peaks={}))[0].lower_bound_us is None


def test_work_of_one_part_puts_all_kernels_in_this_part() -> None:
    found = replace(region(Kernel("aten::mm", 1, 5.0), Kernel("odd", 1, 1.0)), work={TTT: Work(1, 1)})
    assert [part.name for part in parts(found)] == [TTT]
    assert [part.name for part in parts(replace(found, work={"strange": Work(1, 1)}))] == [PRODUCTS, OTHER]


def test_names_are_shown_without_templates_and_arguments() -> None:
    assert short("void at::native::(anonymous namespace)::copy<4, f<int> >(int, char*)") == "native::copy"
    assert short("_dual") == "_dual"
    assert short("void cutlass::Kernel2<a::b<c> >(Params)") == "cutlass::Kernel2"
    assert short("Memcpy HtoD (Pinned -> Device)") == "Memcpy HtoD (Pinned -> Device)"
    long = "triton_poi_fused_" + "_".join(["add"] * 40)
    assert short(long) == f"{long[:79]}…"


@pytest.mark.parametrize(
    ("wrapped", "shown"),
    [
        ("flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Mainloop<2>>>", "flash::FlashAttnFwdSm90"),
        ("cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int>>", "kernel::GemmUniversal"),
    ],
)
def test_a_cutlass_entry_point_is_named_after_its_kernel(wrapped: str, shown: str) -> None:
    assert short(f"void cutlass::device_kernel<{wrapped}>({wrapped}::Params)") == shown
