"""Nsight Compute: its command line, and what it counted of each kernel, from the table that it prints of its report.

The table (`--import REPORT --csv --page raw`) comes from the program that wrote the report, so no second reader of the
format has to keep up with it; ncu-report, NVIDIA's package for that, is proprietary and reads a truncated report as a
shorter one.
"""

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.measure.ranges import COUNTED_LAYER
from harness.profiling.tools.names import demangled
from harness.schema.profile import Counters, ProfileError, short_name
from harness.schema.reason import clipped

PROGRAM = "ncu"
OLDEST = (2023, 1)  # the first that counts Hopper's matrix units by these names
# At most, of a case: each is replayed once for every pass over the metrics. So many hold every kernel of the four
# systems except the head's GEMM of Mamba's prompts, 0.1% of its time.
LAUNCHES = 48
FORBIDDEN = "ERR_NVGPUCTRPERM"
NOTHING = "No kernels were profiled"

_TIME, _DRAM, _L2 = "gpu__time_duration.sum", "dram__bytes.sum", "lts__t_bytes.sum"
_HIT, _OCCUPANCY = "lts__t_sector_hit_rate.pct", "sm__warps_active.avg.pct_of_peak_sustained_active"
_USE = {
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
}
# Bytes of one count: the L2 counts sectors.
_MEMORY = {
    "dram_read": ("dram__bytes_read.sum", 1),
    "dram_write": ("dram__bytes_write.sum", 1),
    "l2_read": ("lts__t_sectors_op_read.sum", 32),
    "l2_write": ("lts__t_sectors_op_write.sum", 32),
    "l1_read": ("l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum", 1),
    "l1_write": ("l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum", 1),
}
_L1_HIT, _OCCUPANCY_LIMIT = "l1tex__t_sector_hit_rate.pct", "sm__maximum_warps_per_active_cycle_pct"
_BLOCKS_PER_SM = {
    "blocks": "launch__occupancy_limit_blocks",
    "registers": "launch__occupancy_limit_registers",
    "shared": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
}
_GRID, _BLOCK = "launch__grid_size", "launch__block_size"
# (counts per cycle, cycles per second) of a peak
_L2_PEAK = ("lts__t_bytes.sum.peak_sustained", "lts__cycles_elapsed.avg.per_second")
_FFMA_PEAK = (
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained",
    "sm__cycles_elapsed.avg.per_second",
)
# FLOPs of one count: matrix units count operations, the others instructions of a thread.
_OPERATIONS = {
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 1,
    "sm__ops_path_tensor_src_fp16.sum": 1,
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum": 1,
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2,
}
_SHARED = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

METRICS = (
    _TIME,
    _DRAM,
    _L2,
    _HIT,
    _OCCUPANCY,
    *_USE.values(),
    *_OPERATIONS,
    _SHARED,
    _CONFLICTS,
    *(name for name, _ in _MEMORY.values()),
    _L1_HIT,
    _OCCUPANCY_LIMIT,
    *_BLOCKS_PER_SM.values(),
    _GRID,
    _BLOCK,
    *_L2_PEAK,
    *_FFMA_PEAK,
    *(_STALL.format(reason) for reason in STALLS),
)
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# Base units of metrics that are no counts, and what their number is multiplied by.
_BASES = {_TIME: {"s": 1e6, "sec": 1e6, "second": 1e6}, _DRAM: {"byte": 1.0}, _L2: {"byte": 1.0}}
_COUNTS = dict.fromkeys(
    (
        "byte/cycle",
        "inst/cycle",
        "byte",
        "hz",
        "Hz",
        "block",
        "sector",
        "%",
        "inst",
        "op",
        "cycle",
        "warp",
        "wavefront",
        "",
    ),
    1.0,
)
_PROFILED = re.compile(r"^==PROF== Profiling ", re.MULTILINE)
_ERROR = re.compile(r"^==ERROR==\s*(.+)$", re.MULTILINE)


def wrapping(report: Path, log: Path, phase_ranges: Sequence[str]) -> list[str]:
    """What to put before a worker's command: counts, of its profiler region, one layer and what is outside of layers.

    phase_ranges: those whose kernels are outside of layers. Each kernel is replayed with the caches and clocks that it
    finds; times are therefore not those of a run.
    """
    return [
        PROGRAM,
        "--target-processes=all",
        "--profile-from-start=off",
        "--nvtx",
        *(f"--nvtx-include={name}]" for name in phase_ranges),
        f"--nvtx-include={COUNTED_LAYER}/",
        f"--launch-count={LAUNCHES}",
        "--replay-mode=kernel",
        "--cache-control=none",
        "--clock-control=none",
        "--graph-profiling=node",
        f"--metrics={','.join(METRICS)}",
        f"--log-file={log}",
        "--force-overwrite",
        f"--export={report}",
    ]


def importing(report: Path) -> list[str]:
    """The command that prints a report as a table."""
    return [
        PROGRAM,
        f"--import={report}",
        "--csv",
        "--page=raw",
        "--print-units=base",
        "--print-kernel-base=mangled",
        "--print-fp",
    ]


def complaint(log: str) -> str:
    """What Nsight Compute's log says went wrong; "" where it says nothing."""
    found = _ERROR.search(log)
    return found.group(1).strip() if found else ""


def profiled_launches(log: str) -> int:
    """How many launches its log says it profiled."""
    return len(_PROFILED.findall(log))


def read(table: str, launches: int | None = None) -> dict[str, Counters]:
    """Counters by the names of kernels as `torch.profiler` writes them.

    launches: how many the log says there are. ProfileError where the table has fewer, has none, or is something else.
    """
    rows = _rows(table)
    if launches is not None and len(rows) < launches:
        raise ProfileError(f"the report of Nsight Compute is truncated: it has {len(rows)} of {launches} launches")
    groups: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for name, values in rows:
        groups[short_name(demangled(name))].append(values)
    return {name: _counters(group) for name, group in groups.items()}


def _rows(table: str) -> list[tuple[str, Mapping[str, float]]]:
    """(kernel, its numbers by metric) of each launch; times in us, sizes in bytes."""
    lines = [line for line in table.splitlines() if line.startswith('"')]  # others are what the program says
    begin = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ProfileError("the table of Nsight Compute has no header: no kernel was profiled, or it is none")
    header, units, *rows = (
        csv.reader(io.StringIO("\n".join(lines[begin:]) + "\n")) if len(lines) > begin + 1 else ([], [])
    )
    if "Kernel Name" not in header or _TIME not in header:
        raise ProfileError(f"the table of Nsight Compute lacks the columns Kernel Name and {_TIME}")
    if not rows:
        raise ProfileError("the report of Nsight Compute holds no launch")
    wanted = {place: name for place, name in enumerate(header) if name in METRICS}
    if len(units) != len(header):
        raise ProfileError("the table of Nsight Compute is truncated at its units")
    scales = {place: _scale(name, units[place]) for place, name in wanted.items()}
    found: list[tuple[str, Mapping[str, float]]] = []
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise ProfileError(f"the table of Nsight Compute is truncated at launch {number}")
        values = {name: _number(row[place]) for place, name in wanted.items()}
        known = {name: value * scales[place] for place, name in wanted.items() if (value := values[name]) is not None}
        if _TIME not in known:
            raise ProfileError(f"the table of Nsight Compute has no time of launch {number}")
        found.append((row[header.index("Kernel Name")], known))
    return found


def _scale(metric: str, unit: str) -> float:
    """What a metric's number is multiplied by; ProfileError for a unit that is none of the metric's."""
    for base, scale in _BASES.get(metric, _COUNTS).items():
        prefix = unit.removesuffix(base) if unit.endswith(base) else None
        if prefix in _PREFIXES:
            return scale * _PREFIXES[prefix]
    raise ProfileError(f"the table of Nsight Compute has {metric} in the unknown unit {clipped(unit, 40)!r}")


def _number(text: str) -> float | None:
    """A number as the program prints it in the C locale, with commas between thousands; None for what is none."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _counters(launches: Sequence[Mapping[str, float]]) -> Counters:
    times = [launch[_TIME] for launch in launches]

    def mean(name: str) -> float | None:
        values = [launch[name] for launch in launches if name in launch]
        return sum(values) / len(values) if values else None

    def whole(name: str) -> int | None:
        value = mean(name)
        return None if value is None else round(value)

    def peak(metrics: tuple[str, str], unit: float) -> float | None:
        per_cycle, clock = map(mean, metrics)
        return None if per_cycle is None or clock is None else per_cycle * clock / unit

    def weighted(name: str) -> float | None:
        pairs = [(launch[name], launch[_TIME]) for launch in launches if name in launch]
        total = sum(time for _, time in pairs)
        return sum(value * time for value, time in pairs) / total if total else None

    waits = {reason: weighted(_STALL.format(reason)) or 0.0 for reason in STALLS}
    latency = sum(waits.values())
    counted = [(mean(name), flops) for name, flops in _OPERATIONS.items()]
    shared, conflicts = mean(_SHARED), mean(_CONFLICTS)
    memory = {name: value * size for name, (metric, size) in _MEMORY.items() if (value := mean(metric)) is not None}
    blocks = {name: value for name, metric in _BLOCKS_PER_SM.items() if (value := whole(metric)) is not None}
    return Counters(
        launches=len(launches),
        time_us=sum(times) / len(times),
        dram_bytes=mean(_DRAM),
        l2_bytes=mean(_L2),
        operations=sum(value * flops for value, flops in counted if value is not None)
        if any(value is not None for value, _ in counted)
        else None,
        use={unit: value for unit, name in _USE.items() if (value := weighted(name)) is not None},
        occupancy=weighted(_OCCUPANCY),
        l2_hit=weighted(_HIT),
        stalls={reason: wait / latency for reason, wait in waits.items() if wait} if latency else {},
        conflicts=conflicts / shared if shared and conflicts is not None else None,
        l1_hit=weighted(_L1_HIT),
        memory=memory,
        occupancy_limit=weighted(_OCCUPANCY_LIMIT),
        blocks_per_sm=blocks,
        grid=whole(_GRID),
        block=whole(_BLOCK),
        l2_peak_gbs=peak(_L2_PEAK, 1e9),
        fp32_peak_tflops=peak(_FFMA_PEAK, 0.5e12),
    )
