"""Synthetic profiles of 1.3B models on an H100, computed from formulas."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import synthetic_records as synthetic

from bench.cost import model_work
from bench.models.config import model_config, parameter_count
from harness.profiling.tools.trace import Launched, region_fields
from harness.schema.case import Case
from harness.schema.profile import Counters, Profile, write_profile
from harness.schema.run import Run
from harness.schema.work import Work

LAYERS, PER_LAYER = 24, 4  # PER_LAYER: repetitions of BLOCK in a layer
RUNS, IDLE_US = 5, 1.4
PEAKS = {"copy_gbs": 2960.0, "product_tflops": 702.0}
GEMM = "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
HEAD = "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_64x2_tn_align8>(Params)"
MIXERS = {
    "ttt-linear": "void linear_forward<layout<16> >(globals)",
    "ttt-mlp": "void mlp_forward<layout<16, 64> >(globals)",
    "mamba": "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<128, 16, 1, true> >(SSMParamsBase)",
    "transformer": "void flash::FlashAttnFwdSm90<cutlass::bfloat16_t, 64>(Params)",
}
# (kernel or "" for the mixer's, range inside the layer, share of the layer's time, GB and TFLOP per ms)
BLOCK = (
    ("_norm", "", 0.012, 2.5, 0.004),
    (GEMM, "", 0.30, 0.9, 0.66),
    ("_residual_convolution", "", 0.018, 2.6, 0.008),
    ("_query_key", "", 0.014, 2.7, 0.006),
    ("", "operator", 0.11, 1.1, 0.21),
    ("_norm_gate", "", 0.012, 2.7, 0.005),
    (GEMM, "", 0.11, 0.9, 0.65),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "", 0.27, 1.0, 0.67),
    ("_swiglu", "", 0.024, 2.7, 0.01),
    ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "", 0.13, 1.0, 0.66),
)


def profile_of(case: Case, latency_ms: float, counted: bool) -> Profile:
    ranged, length = list(_run(case, latency_ms)), latency_ms * 1e3
    timed = [
        replace(each, start_us=each.start_us + length * run, end_us=each.end_us + length * run, path=())
        for run in range(1, RUNS + 1)
        for each in ranged
    ]
    found = region_fields(timed, ranged, RUNS)
    if counted:
        found["kernels"] = tuple(
            kernel if kernel.name.startswith("Memset") else replace(kernel, counters=_counters(kernel))
            for kernel in found["kernels"]
        )
    tools = {"nsys": "2025.3.2", "ncu": "2025.3.1"}
    return Profile(**found, units=RUNS, peaks=PEAKS, work=work_of(case), case=case, tools=tools)


def work_of(case: Case) -> dict[str, Work]:
    config = model_config(case.system, case.size)
    return model_work(config, parameter_count(config), case)


def _run(case: Case, latency_ms: float) -> Iterator[Launched]:
    count = LAYERS * PER_LAYER * len(BLOCK) + 3
    now, layers_us = 0.0, (latency_ms * 1e3 - count * IDLE_US) * 0.994
    for name, path, time_us in _launches(case, layers_us, latency_ms):
        yield Launched(name, now, now + time_us, time_us, path, 168, 98_304)
        now += time_us + IDLE_US


def _launches(case: Case, layers_us: float, latency_ms: float) -> Iterator[tuple[str, tuple[str, ...], float]]:
    yield "void at::native::indexSelectLargeIndex<bf16>(int)", (case.phase,), latency_ms * 2
    for layer in range(LAYERS):
        for name, inside, share, *_ in BLOCK * PER_LAYER:
            operator = [inside] if inside and case.system.startswith("ttt") else []
            path = (case.phase, f"layer {layer}", *operator)
            yield name or MIXERS[case.system], path, layers_us * share / LAYERS / PER_LAYER
    yield "Memset (Device)", (case.phase,), latency_ms / 10
    yield HEAD, (case.phase,), latency_ms * 3


def _counters(kernel) -> Counters:
    _, _, _, gb, tflop = next((row for row in BLOCK if row[0] == kernel.name), BLOCK[4])
    each_us = kernel.time_us / kernel.launches
    return Counters(
        launches=10,
        time_us=each_us * 1.1,
        dram_bytes=gb * 1e6 * each_us,
        l2_bytes=2 * gb * 1e6 * each_us,
        operations=tflop * 1e9 * each_us,
        use={"sm": 44.0, "l2": 31.0, "dram": gb / 2.96 * 100, "tensor": 33.0},
        occupancy=24.6,
        l2_hit=61.0,
        stalls={"barrier": 0.34, "long_scoreboard": 0.21, "wait": 0.08, "selected": 0.1},
    )


def write_run(folder: Path) -> Run:
    latencies = (147.0, 171.0, 168.8, 258.0)
    cases = [Case(*system, "1.3b", "forward", 16, 2048) for system in synthetic.PAPER_SYSTEMS]
    records = [
        synthetic.ok(replace(case, context=2048 * times), latency * times)
        for times in (1, 2)
        for case, latency in zip(cases, latencies, strict=True)
    ]
    run = Run.open(synthetic.of_suite("fig15-forward", *records).run(folder))
    (run.folder / "profiles").mkdir()
    for number, (case, latency) in enumerate(zip(cases, latencies, strict=True)):
        found = profile_of(case, latency * (1.012 if number else 1.05), counted=case.system != "mamba")
        write_profile(run.folder, found)
    return run
