import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness_helpers import HERE
from profile_helpers import DUAL, GEMM, PROCESS, ncu_table, nsys_database, nsys_row

from harness.measure.ranges import nvtx_range, range_names
from harness.profiling.tools import kineto, ncu, nsys
from harness.profiling.tools.trace import (
    Launched,
    Runs,
    Span,
    kernels_of,
    paths_at,
    profile_fields,
    ranges_of,
    region_fields,
    timeline_of,
)
from harness.schema.profile import NAME_LIMIT, TIMELINE_LIMIT, Counters, ProfileError, Timeline, short_name

# Reports of an H100, pruned to ten launches, without names of hosts and folders.
FIXTURES, LAUNCHES = HERE / "fixtures", 10


def event(category: str, name: str, start: float, duration: float, **arguments: Any) -> dict[str, Any]:
    thread = arguments.pop("tid", 1)
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "tid": thread, "args": arguments}


GPU_TRACE = [
    event("user_annotation", "forward", 0, 100),
    event("user_annotation", "layer 0", 10, 20),
    event("cpu_op", "aten::mm", 11, 5),
    event("cuda_runtime", "cudaLaunchKernel", 12, 1, correlation=1),
    event("cuda_driver", "cuLaunchKernelEx", 40, 1, correlation=2),
    event("cuda_runtime", "cudaMemcpyAsync", 50, 1, correlation=3, tid=2),
    event("kernel", "gemm", 200, 10, correlation=1, **{"registers per thread": 168, "shared memory": 4096}),
    event("kernel", "_dual", 215, 20, correlation=2),
    event("gpu_memcpy", "Memcpy DtoD", 230, 10, correlation=3),
    {"ph": "M", "name": "process_name", "args": {}},
]


def test_kineto_joins_kernels_to_the_ranges_of_their_launch() -> None:
    found = kineto.launched(GPU_TRACE)
    assert [(each.name, each.path) for each in found] == [
        ("gemm", ("forward", "layer 0")),
        ("_dual", ("forward",)),
        ("Memcpy DtoD", ()),
    ]
    assert (found[0].registers, found[0].shared_bytes, found[0].own_us) == (168, 4096, 10)


def test_a_kernel_starts_after_the_previous_one_on_its_stream() -> None:
    kernels = [
        event("kernel", "waits", 105, 25, stream=7, device=0),
        event("kernel", "first", 100, 20, stream=7, device=0),
        event("kernel", "third", 130, 5, stream=7, device=0),
        event("kernel", "another stream's", 110, 20, stream=8, device=0),
        event("kernel", "another GPU's", 110, 20, stream=7, device=1),
    ]
    found = {each.name: (each.start_us, each.end_us, each.own_us) for each in kineto.launched(kernels)}
    assert found == {
        "first": (100, 120, 20),
        "waits": (120, 130, 10),
        "third": (130, 135, 5),
        "another stream's": (110, 130, 20),
        "another GPU's": (110, 130, 20),
    }


def test_a_kernel_that_ends_while_waiting_takes_no_time() -> None:
    kernels = [
        event("kernel", "long", 100, 50, stream=7),
        event("kernel", "short", 110, 5, stream=7),
        event("kernel", "next", 140, 20, stream=7),
    ]
    found = {each.name: (each.start_us, each.end_us, each.own_us) for each in kineto.launched(kernels)}
    assert found == {"long": (100, 150, 50), "short": (150, 150, 0), "next": (150, 160, 10)}


@pytest.mark.parametrize("byte", [b"\xff", b"\x01"])
def test_a_kernel_name_may_have_another_encoding(byte: bytes) -> None:
    (event,) = kineto.events_of(b'{"traceEvents": [{"name": "ge' + byte + b'mm"}]}')
    assert event["name"] in ("ge\ufffdmm", "ge\x01mm")


def test_a_recording_on_the_cpu_finds_the_operators_in_their_ranges(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(32, 32)
    with kineto.recording("cpu", with_ranges=True, keep=tmp_path / "a.trace.json.gz") as found:
        torch.add(x, x)
        with nvtx_range("forward"), nvtx_range("layer 0"):
            torch.nn.functional.linear(x, x)
    calls = {each.name: each for each in found}
    assert (calls["aten::add"].path, calls["aten::mm"].path) == ((), ("forward", "layer 0"))
    took = {name: each.end_us - each.start_us for name, each in calls.items()}
    assert 0 <= calls["aten::linear"].own_us <= took["aten::linear"] - took["aten::mm"]
    assert region_fields(found, found)["busy_us"] <= took["aten::linear"] + took["aten::add"] + 0.01
    assert (tmp_path / "a.trace.json.gz").stat().st_size > 100


def test_work_before_a_recording_is_not_in_it() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(8, 8)
    with kineto.recording("cpu", with_ranges=False, before=lambda: torch.mm(x, x)) as found:
        torch.add(x, x)
    names = {each.name for each in found}
    assert "aten::add" in names
    assert "aten::mm" not in names


def test_nsys_separates_timed_runs_from_the_call_under_ranges(tmp_path: Path) -> None:
    timed, ranged = nsys.read(nsys_database(tmp_path / "a.sqlite"))
    assert [(each.name, each.path) for each in ranged] == [
        ("gemm(float*)", ("forward", "layer 0")),
        ("_dual", ("forward",)),
    ]
    assert [each.name for each in timed] == ["gemm(float*)", "_dual", "memory copy"]
    assert (timed[0].registers, timed[0].shared_bytes) == (32, 128)
    region = region_fields(timed, ranged)
    assert (region["region_us"], region["busy_us"], region["longest_gap_us"]) == (7.0, 6.0, 1.0)


def launch_between(database: sqlite3.Connection) -> None:
    """Add a kernel launch after the NVTX range "forward" ends and before the range of the timed runs begins."""
    runtime = {"start": 15000, "end": 15100, "correlationId": 9, "globalTid": PROCESS + 5}
    nsys_row(database, "CUPTI_ACTIVITY_KIND_RUNTIME", **runtime)
    row = {"correlationId": 9, "globalPid": PROCESS, "streamId": 7, **DUAL}
    nsys_row(database, "CUPTI_ACTIVITY_KIND_KERNEL", start=55000, end=56000, **row)


def test_nsys_leaves_out_the_lead_in(tmp_path: Path) -> None:
    path = nsys_database(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as database:
        for start, end, text in ((14000, 18000, "lead"), (14500, 16000, "layer 0")):
            row = {"eventType": 59, "text": text, "globalTid": PROCESS + 5}
            nsys_row(database, "NVTX_EVENTS", start=start, end=end, **row)
        launch_between(database)
        database.commit()
    assert nsys.read(path) == nsys.read(nsys_database(tmp_path / "without.sqlite"))


def test_nsys_reads_streams(tmp_path: Path) -> None:
    path = nsys_database(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 62000 WHERE correlationId = 4")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET start = 61500")
        database.commit()
    timed, _ = nsys.read(path)
    assert [(each.name, each.start_us, each.own_us) for each in timed] == [
        ("gemm(float*)", 60.0, 3.0),
        ("memory copy", 61.5, 5.5),
        ("_dual", 63.0, 3.0),
    ]


def test_nsys_separates_processes_and_drops_launches_outside_ranges(tmp_path: Path) -> None:
    path = nsys_database(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as database:
        # A range that never ended, and a launch between the call and the timed runs.
        nsys_row(database, "NVTX_EVENTS", start=100, end=None, eventType=59, text="open", globalTid=PROCESS + 5)
        launch_between(database)
        # The engine's other process has a stream of the same number.
        other = PROCESS + (1 << 24)
        nsys_row(database, "NVTX_EVENTS", start=20000, end=40000, eventType=59, text="timed", globalTid=other + 5)
        row = {"correlationId": 3, "globalPid": other, "streamId": 7, **GEMM, "dynamicSharedMemory": 1000}
        nsys_row(database, "CUPTI_ACTIVITY_KIND_KERNEL", start=61000, end=63500, **row)
        # Other threads, such as autograd's, launch a kernel of the call and a copy of the timed runs.
        for thread, correlation in ((2, 2), (1, 5)):
            change = f"globalTid = globalTid + {thread} WHERE correlationId = {correlation}"
            database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET {change}")
        database.commit()
    timed, ranged = nsys.read(path)
    assert [(each.name, each.path) for each in ranged] == [
        ("gemm(float*)", ("forward", "layer 0")),
        ("_dual", ("forward", "another thread")),
    ]
    assert [(each.start_us, each.own_us) for each in timed] == [(60.0, 3.0), (61.0, 2.5), (64.0, 2.0), (65.0, 2.0)]
    assert [each.shared_bytes for each in timed[:2]] == [128, 1128]  # the static, and with the dynamic


def test_the_timeline_is_the_first_run_with_the_ranges_of_the_call(tmp_path: Path) -> None:
    run = kineto.launched(GPU_TRACE)
    later = [replace(each, start_us=each.start_us + 1e3, end_us=each.end_us + 1e3, path=()) for each in run]
    after = [replace(each, start_us=each.start_us + 5e3, end_us=each.end_us + 5e3, path=()) for each in run]
    timeline = region_fields([*after, *later], run, runs=2)["timeline"]
    assert timeline == Timeline(
        kernel=(1, 0, 2), range=(0, 1, -1), wait_ns=(0, 5000, -5000), time_ns=(10000, 20000, 10000)
    )
    unlike = region_fields([*after, *later], run[:2], runs=2)["timeline"]
    assert unlike.range == (-1, -1, -1)
    more = region_fields([*after, *later], [*run, run[0]], runs=2)["timeline"]
    assert more.range == (-1, -1, -1)


def test_the_longest_idle_time_may_precede_others() -> None:
    launched = [Launched("a", 0, 10, 10), Launched("b", 40, 90, 50, shared_bytes=8), Launched("b", 95, 96, 1)]
    launched.append(Launched("b", 50, 55, 5, shared_bytes=64))  # on another stream
    found = region_fields(launched, [])
    assert (found["region_us"], found["busy_us"], found["longest_gap_us"]) == (96, 61, 30)
    assert [(each.name, each.shared_bytes) for each in found["kernels"]] == [("b", 64), ("a", None)]


def test_adjacent_ranges_include_their_ends() -> None:
    spans = [Span("layer 0", 1, 0, 10), Span("layer 1", 1, 10, 20)]
    assert paths_at(spans, [(1, 9.75), (1, 10), (1, 20), (1, 20.5)]) == [
        ("layer 0",),
        ("layer 1",),
        ("layer 1",),
        (),
    ]


@pytest.mark.parametrize(
    ("paths", "shown"),
    [
        (["generate", *["generate/layer 0"] * 2, "generate/layer 1", "generate"] * 3, 5),
        (["generate", *["generate/layer 0"] * 4], 5),
        (["forward/layer 0", "forward/layer 1", "generate/layer 0", "generate/layer 1"], 4),
        ([f"forward/layer {n}" for n in range(TIMELINE_LIMIT + 7)], TIMELINE_LIMIT),
        (["generate/layer 0/operator", "generate/layer 0", "generate/layer 1"] * 2, 3),
    ],
)
def test_the_timeline_is_one_step(paths: list[str], shown: int) -> None:
    run = [Launched(path[-7:], at, at + 0.5, 0.5, tuple(path.split("/"))) for at, path in enumerate(paths)]
    found = timeline_of(run, run, 1, kernels_of(run), ranges_of(run, kernels_of(run)))
    assert (len(found.kernel), found.left_out) == (shown, len(paths) - shown)


def test_nanoseconds_survive_a_clock_since_1970() -> None:
    run = [Launched("a", 1.7e15 + 0.25, 1.7e15 + 1.5, 1.25), Launched("b", 1.7e15 + 2.0, 1.7e15 + 3.0, 1.0)]
    found = region_fields(run, run)["timeline"]
    assert (found.wait_ns, found.time_ns) == ((0, 500), (1250, 1000))


def test_a_foreign_nsys_export_is_refused(tmp_path: Path) -> None:
    whole = nsys_database(tmp_path / "a.sqlite").read_bytes()
    for name, content in {"foreign": b"not a database at all" * 100, "truncated": whole[: len(whole) // 2]}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ProfileError, match="truncated or in another format"):
            nsys.read(tmp_path / name)
    with pytest.raises(ProfileError, match="truncated or in another format"):
        nsys.read(tmp_path / "absent")
    sqlite3.connect(tmp_path / "empty").execute("CREATE TABLE other (id INTEGER)")
    with pytest.raises(ProfileError, match="nothing was captured: no such table: NVTX_EVENTS"):
        nsys.read(tmp_path / "empty")


def test_every_metric_exists_on_gh100() -> None:
    names = set((HERE / "gh100_metrics.txt").read_text().split())
    assert {metric.split(".")[0] for metric in ncu.METRICS} <= names
    assert len(set(ncu.METRICS)) == len(ncu.METRICS)


def test_ncu_counts_by_kernel() -> None:
    found = ncu.read(ncu_table("_ZN2at4gemmILi4EEEvi", "_dual"))
    assert list(found) == ["void at::gemm<4>(int)", "_dual"]
    counters = found["_dual"]
    assert (counters.launches, counters.time_us, counters.dram_bytes) == (2, 2.0, 5.4e6)
    assert counters.operations == 1e6 + 2 * 500
    assert counters.use == {"sm": 31.0, "dram": 90.5}
    assert counters.stalls == {"barrier": 0.75, "selected": 0.25}
    assert (counters.l2_bytes, counters.occupancy, counters.l2_hit) == (None, None, None)


TIME = "gpu__time_duration.sum"


def counters_of(*launches: dict[str, str], units: dict[str, str] | None = None) -> Counters:
    names = list(dict.fromkeys(name for each in launches for name in each))
    base = {TIME: "ns", "dram__bytes.sum": "byte", "lts__t_bytes.sum": "byte"} | (units or {})
    rows = [["ID", "Kernel Name", *names], ["", "", *(base.get(name, "") for name in names)]]
    rows += [[str(place), "one", *(each.get(name, "n/a") for name in names)] for place, each in enumerate(launches)]
    return ncu.read("".join(",".join(f'"{field}"' for field in row) + "\n" for row in rows))["one"]


@pytest.mark.parametrize(
    ("metric", "unit"), [(TIME, "us"), (TIME, ""), ("dram__bytes.sum", "Kbyte"), ("lts__t_bytes.sum", "sector")]
)
def test_an_unknown_unit_of_ncu_is_an_error(metric: str, unit: str) -> None:
    with pytest.raises(ProfileError, match=rf"{metric} in the unknown unit '{unit}'$"):
        counters_of({TIME: "1", metric: "1"}, units={metric: unit})


def test_messages_after_the_ncu_table_are_ignored() -> None:
    table = ncu_table("_dual") + "==WARNING== The report was written by another version\n"
    assert ncu.read(table)["_dual"].launches == 2


@pytest.mark.parametrize(
    ("path", "flops"),
    [
        ("sm__ops_path_tensor_src_bf16_dst_fp32.sum", 10),
        ("sm__ops_path_tensor_src_fp16.sum", 10),
        ("sm__ops_path_tensor_src_tf32_dst_fp32.sum", 10),
        ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", 10),
        ("smsp__sass_thread_inst_executed_op_fmul_pred_on.sum", 10),
        ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum", 20),
    ],
)
def test_ncu_counts_flops_of_every_path(path: str, flops: float) -> None:
    assert counters_of({TIME: "1", path: "10"}).operations == flops


def test_ncu_counts_every_kind_in_its_own_field() -> None:
    first = {
        TIME: "1,000.00",
        "dram__bytes.sum": "100",
        "lts__t_bytes.sum": "200",
        "lts__t_sector_hit_rate.pct": "70",
        "sm__warps_active.avg.pct_of_peak_sustained_active": "30",
        "lts__throughput.avg.pct_of_peak_sustained_elapsed": "22",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "44",
    }
    found = counters_of(first, {TIME: "3,000.00", "dram__bytes.sum": "300"})
    assert (found.launches, found.time_us, found.dram_bytes) == (2, 2.0, 200.0)
    # A mean leaves out launches without the metric.
    assert (found.l2_bytes, found.l2_hit, found.occupancy) == (200.0, 70.0, 30.0)
    assert found.use == {"l2": 22.0, "tensor": 44.0}


# Output of Nsight Compute 2025.3 on an H100.
PEAKS = {
    TIME: ("32,448.00", "ns"),
    "lts__t_bytes.sum.peak_sustained": ("7,680.00", "byte/cycle"),
    "lts__cycles_elapsed.avg.per_second": ("1,704,172,830.37", "hz"),
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": ("16,896.00", "inst/cycle"),
    "sm__cycles_elapsed.avg.per_second": ("2,002,827,367.61", "hz"),
}


def test_ncu_computes_peaks_at_the_clocks_of_the_launches() -> None:
    values, units = ({name: pair[place] for name, pair in PEAKS.items()} for place in (0, 1))
    found = counters_of(values, units=units)
    assert (round(found.l2_peak_gbs), round(found.fp32_peak_tflops, 1)) == (13_088, 67.7)


def test_ncu_means_are_weighted_by_time() -> None:
    short, long = ncu_table("one", launches=1), ncu_table("one", launches=1).replace("2,000.00", "6,000.00")
    long = long.replace("31.00", "71.00").splitlines()[-1]
    counters = ncu.read(short + long + "\n")["one"]
    assert (counters.launches, counters.time_us, counters.use["sm"]) == (2, 4.0, 61.0)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("==ERROR== no such file\n", "has no header"),
        ('"ID","Kernel Name"\n"",""\n"1","one"\n', "lacks the columns"),
    ],
)
def test_a_broken_ncu_table_is_refused(table: str, why: str) -> None:
    with pytest.raises(ProfileError, match=why):
        ncu.read(table)


@pytest.mark.parametrize("none", ["nan", "inf", "(!) nan"])
def test_ncu_values_without_a_number_are_not_counted(none: str) -> None:
    counters = ncu.read(ncu_table("one").replace("31.00", none))["one"]
    assert ("sm" in counters.use, counters.use["dram"]) == (False, 90.5)


def test_the_longest_idle_time_of_an_engine_is_bounded() -> None:
    """Two runs took 201 µs; kernels ran for 161 µs, so at most 40 µs were idle. The pause between runs is ignored."""
    runs = [Launched("a", 0, 80, 80), Launched("a", 5100, 5180, 80), Launched("b", 5180, 5181, 1)]
    found = profile_fields(runs, [], Runs(2, wall_us=[100, 101]))
    assert (found["region_us"], found["busy_us"], found["longest_gap_us"]) == (201, 161, 40)


def test_the_ncu_command_has_every_metric_and_one_layer() -> None:
    words = ncu.command_prefix(Path("/a/b.ncu-rep"), range_names("forward"))
    assert words[0] == "ncu"
    request = ncu.command_prefix(Path("/a/b.ncu-rep"), range_names("request"))
    assert [word for word in request if word not in words] == [
        "--nvtx-include=request]",
        "--nvtx-include=generate]",
    ]
    assert {"--nvtx-include=forward]", "--nvtx-include=layer 1/"} <= set(words)
    assert f"--metrics={','.join(ncu.METRICS)}" in words


def test_long_names_with_different_middles_are_two_kernels() -> None:
    names = ["a" * 400 + middle + "a" * 400 for middle in "bc"]
    assert max(len(short_name(name)) for name in names) <= NAME_LIMIT
    assert short_name("void x\n(int)") == "void x (int)"
    region = region_fields([Launched(name, place, place + 1, 1.0) for place, name in enumerate(names)], [])
    assert [kernel.launches for kernel in region["kernels"]] == [1, 1]


def test_the_counters_of_an_h100_are_read() -> None:
    found = ncu.read((FIXTURES / "h100.ncu.csv").read_text())
    assert 1 <= sum(each.launches for each in found.values()) <= LAUNCHES
    counted = max(found.values(), key=lambda each: each.time_us)
    assert counted.dram_bytes
    assert counted.operations
    assert set(counted.use) == {"sm", "l2", "dram", "tensor"}
    assert counted.occupancy
    assert sum(counted.stalls.values()) == pytest.approx(1.0)


def test_the_export_of_an_h100_is_read(tmp_path: Path) -> None:
    export = tmp_path / "h100.sqlite"
    with closing(sqlite3.connect(export)) as database:
        database.executescript((FIXTURES / "h100.nsys.sql").read_text())
    timed, ranged = nsys.read(export)
    assert len(timed) == len(ranged) == LAUNCHES // 2
    assert {each.path for each in ranged} == {("prefill", "layer 0"), ("prefill", "layer 0", "operator")}
    assert {each.path for each in timed} == {("timed", "layer 23"), ("timed",)}
    assert all(each.registers for each in ranged)


def test_the_trace_of_an_h100_is_read() -> None:
    launched = kineto.launched(kineto.events_of((FIXTURES / "h100.trace.json").read_bytes()))
    region = region_fields(launched, launched)
    assert 1 <= len(launched) <= LAUNCHES
    assert 0 < region["busy_us"] <= region["region_us"]
