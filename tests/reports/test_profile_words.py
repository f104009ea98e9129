from dataclasses import replace

import pytest

from harness.profile_region import Counters, Kernel, Range, RangeKernel, Region
from reports.profile_parts import EDGES, GAPS, HEAD, OTHER, PRODUCTS, SCAN, TTT, kernel_floor_us, part_of, parts
from reports.profile_words import bound_of, sentences, short, waits

CEILINGS: dict[str, float | None] = {"copy_gbs": 3000.0, "product_tflops": 600.0}


def counted(**changes: object) -> Counters:
    values: dict = {"launches": 1, "time_us": 100.0, "use": {"sm": 30.0, "l2": 41.0, "dram": 20.0}}
    return Counters(**(values | {"stalls": {"selected": 0.5, "barrier": 0.34, "wait": 0.1}} | changes))


def region(*kernels: Kernel, gaps: float = 0.0, ranges: tuple[Range, ...] = ()) -> Region:
    busy = sum(kernel.time_us for kernel in kernels)
    return Region(1, busy + gaps, busy, gaps, kernels, ranges, CEILINGS)


def one(**changes: object) -> Region:
    return region(Kernel("void at::gemm<4>(int)", 2, 200.0, counters=counted(**changes)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dram_bytes": 2.73e8}, "91% of a copy's bandwidth: bound by memory"),
        ({"operations": 5.1e10}, "85% of a large product's rate: bound by the matrix units"),
        ({"dram_bytes": 1.9e8, "operations": 5.1e10}, "85% of a large product's rate: bound by the matrix units"),
        ({"use": {"sm": 20.0, "l2": 78.0}}, "the L2 at 78% of peak: bound by the L2"),
        ({}, "no unit above 60% (the L2 41%): latency; warps wait for barriers 34% of the time"),
        ({"stalls": {}}, "no unit above 60% (the L2 41%): latency"),
        ({"use": {}}, "the use of its units was not counted"),
    ],
)
def test_what_bounds_a_kernel(changes: dict, words: str) -> None:
    found = one(**changes)
    assert bound_of(found.kernels[0], found) == words


def test_without_counters_nothing_is_claimed() -> None:
    found = region(Kernel("gemm", 1, 80.0), gaps=20.0)
    assert sentences(found) == (
        "Matrix products 80% of the time; gaps take 20%: launches.",
        "gemm (100% of the kernels' time): what bounds it was not counted.",
    )


def test_mostly_gaps_is_bound_by_launches() -> None:
    assert sentences(region(Kernel("gemm", 1, 20.0), gaps=80.0))[1] == ("Gaps take most of it: bound by launches.")
    assert sentences(region(Kernel("aten::mm", 1, 20.0), gaps=80.0))[0].endswith("gaps take 80%: Python.")


def test_few_gaps_are_not_worth_their_words() -> None:
    assert "gaps" not in sentences(region(Kernel("gemm", 1, 95.0), gaps=5.0))[0]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT", PRODUCTS),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", PRODUCTS),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<int> > >(int)", SCAN),
        ("_dual", TTT),
        ("dual", TTT),
        ("void linear_forward<layout<16> >(globals)", TTT),
        ("void forward_kernel<bf16>(globals)", TTT),
        ("_residual_convolution", EDGES),
        ("_norm_gate", EDGES),
        ("_swiglu", EDGES),
        ("_query_key", EDGES),
        ("causal_conv1d_fwd_kernel", EDGES),
        ("_chunk_scan_fwd_kernel", SCAN),
        ("selective_state_update", SCAN),
        ("void vllm::act_and_mul_kernel<bf16>(int)", EDGES),
        ("void at::native::vectorized_elementwise_kernel<4, add>(int)", EDGES),
        ("aten::mm", PRODUCTS),
        ("aten::mul", EDGES),
        ("Memcpy DtoD", OTHER),
        ("void at::native::indexSelectLargeIndex<bf16>(int)", OTHER),
    ],
)
def test_parts_by_name(name: str, part: str) -> None:
    assert part_of(name) == part


def test_parts_by_range() -> None:
    assert part_of("aten::mm", ("prefill", "layer 3", "operator"), True) == TTT
    assert part_of("nvjet", ("prefill",), True) == HEAD
    assert part_of("nvjet", ("prefill", "layer 3"), True) == PRODUCTS
    assert part_of("nvjet", ("prefill",)) == PRODUCTS


def test_a_kernel_of_two_ranges_is_shared_between_their_parts() -> None:
    ranges = (
        Range(("prefill", "layer 0"), (RangeKernel(0, 3, 30.0),)),
        Range(("prefill", "layer 0", "operator"), (RangeKernel(1, 1, 5.0),)),
        Range(("prefill",), (RangeKernel(0, 1, 10.0),)),
    )
    found = region(Kernel("gemm", 8, 80.0), Kernel("odd", 2, 12.0), gaps=8.0, ranges=ranges)
    assert {part.name: (part.time_us, part.launches) for part in parts(found)} == {
        PRODUCTS: (60.0, 6),
        TTT: (12.0, 2),
        HEAD: (20.0, 2),
        GAPS: (8.0, 0),
    }


def test_kernels_that_overlap_add_up_to_the_region() -> None:
    found = replace(region(Kernel("gemm", 1, 80.0), Kernel("_dual", 1, 40.0)), busy_us=90.0, region_us=100.0)
    assert [(part.name, part.time_us) for part in parts(found)] == [(PRODUCTS, 60.0), (TTT, 30.0), (GAPS, 10.0)]


def test_a_floor_is_the_longer_of_moving_and_computing() -> None:
    found = one(dram_bytes=9e7, operations=3e10)
    assert kernel_floor_us(found.kernels[0], found) == pytest.approx(2 * 50.0)
    assert kernel_floor_us(found.kernels[0], replace(found, ceilings={})) is None
    assert parts(found)[0].floor_us == pytest.approx(100.0)
    half = region(found.kernels[0], Kernel("other_gemm", 1, 200.0))
    assert parts(half)[0].floor_us is None  # half of the part was not counted


def test_names_are_shown_without_templates_and_arguments() -> None:
    assert short("void at::native::(anonymous namespace)::copy<4, f<int> >(int, char*)") == "native::copy"
    assert short("_dual") == "_dual"
    assert short("void cutlass::Kernel2<a::b<c> >(Params)") == "cutlass::Kernel2"


def test_waits_leave_out_warps_that_work() -> None:
    assert waits(counted()) == [("for barriers", 0.34), ("for the fixed latency of instructions", 0.1)]
