"""Write commands for Nsight Compute, and read each kernel's counters from its report."""

import csv
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.measure.ranges import COUNTED_LAYER
from harness.profiling.tools.trace import demangled
from harness.schema.profile import Counters, ProfileError, short_name
from harness.schema.reason import clipped

PROGRAM = "ncu"
LAUNCHES = 48  # launches counted per case; each is replayed for every group of metrics
NO_PERMISSION = "ERR_NVGPUCTRPERM"
NO_KERNELS = "No kernels were profiled"

_TIME, _DRAM, _L2 = "gpu__time_duration.sum", "dram__bytes.sum", "lts__t_bytes.sum"
_HIT, _OCCUPANCY = "lts__t_sector_hit_rate.pct", "sm__warps_active.avg.pct_of_peak_sustained_active"
_USE = {
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
}
# (counts per cycle, cycles per second) of a peak
_L2_PEAK = ("lts__t_bytes.sum.peak_sustained", "lts__cycles_elapsed.avg.per_second")
_FFMA_PEAK = ("sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained", "sm__cycles_elapsed.avg.per_second")
# FLOPs per count: the tensor cores' metrics count operations, the others count instructions of a thread.
_OPERATIONS = {
    "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 1,
    "sm__ops_path_tensor_src_fp16.sum": 1,
    "sm__ops_path_tensor_src_tf32_dst_fp32.sum": 1,
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2,
}
STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "misc", "no_instruction", "not_selected", "selected",
    "short_scoreboard", "sleeping", "tex_throttle", "wait",
)  # fmt: skip
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

METRICS = (
    *(_TIME, _DRAM, _L2, _HIT, _OCCUPANCY),
    *_USE.values(),
    *_OPERATIONS,
    *_L2_PEAK,
    *_FFMA_PEAK,
    *(_STALL.format(reason) for reason in STALLS),
)
_UNITS = {_TIME: ("ns", "nsecond"), _DRAM: ("byte",), _L2: ("byte",)}  # base units, by version
_ERROR = re.compile(r"^==ERROR==\s*(.+)$", re.MULTILINE)


def command_prefix(report: Path, phase_ranges: Sequence[str]) -> list[str]:
    """Return the start of a command that runs a worker under Nsight Compute.

    Inside `profiler_range`, ncu profiles the first 48 kernel launches that run in one layer or outside of all layers.
    It replays each kernel with warm caches and unlocked clocks, so times differ from ordinary runs.
    report: path for the report; the log next to it has the suffix .log.
    phase_ranges: names of the NVTX ranges that enclose the layers' ranges.
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
        f"--log-file={report.with_suffix('.log')}",
        "--force-overwrite",
        f"--export={report}",
    ]


def import_command(report: Path) -> list[str]:
    """Return the command that prints a report as the table which `read` needs."""
    # Instead of NVIDIA's Python package, which is proprietary and does not reject truncated reports.
    flags = ("--csv", "--page=raw", "--print-units=base", "--print-kernel-base=mangled", "--print-fp")
    return [PROGRAM, f"--import={report}", *flags]


def error_message(log: str) -> str:
    """Return the first error message in a log of Nsight Compute; "" without an error."""
    found = _ERROR.search(log)
    return found.group(1).strip() if found else ""


def read(table: str) -> dict[str, Counters]:
    """Return {kernel name: counters} from the table that the command of `import_command` prints.

    Kernel names are written as torch.profiler writes them.
    Raises ProfileError if the table is empty or not from Nsight Compute.
    """
    groups: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for name, values in _rows(table):
        groups[short_name(demangled(name))].append(values)
    return {name: _counters(group) for name, group in groups.items()}


def _rows(table: str) -> list[tuple[str, Mapping[str, float]]]:
    """Return each launch's (kernel name, {metric: number}); times in µs, sizes in bytes."""
    lines = [line for line in table.splitlines() if line.startswith('"')]  # the others are messages
    begin = next((place for place, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise ProfileError("the table of Nsight Compute has no header: no kernel was profiled, or it is another file")
    units, *launches = [*csv.DictReader(lines[begin:])] or [{}]
    if "Kernel Name" not in units or _TIME not in units:
        raise ProfileError(f"the table of Nsight Compute lacks the columns Kernel Name and {_TIME}")
    for metric, known in _UNITS.items():
        if (unit := units.get(metric, known[0])) not in known:
            raise ProfileError(f"the table of Nsight Compute has {metric} in the unknown unit {clipped(unit, 40)!r}")
    found: list[tuple[str, Mapping[str, float]]] = []
    for launch in launches:
        values = {name: value for name in METRICS if (value := _number(launch.get(name) or "")) is not None}
        if _TIME in values:
            found.append((launch["Kernel Name"], values | {_TIME: values[_TIME] / 1e3}))
    return found


def _number(text: str) -> float | None:
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

    def peak(metrics: tuple[str, str], unit: float) -> float | None:
        per_cycle, clock = map(mean, metrics)
        return None if per_cycle is None or clock is None else per_cycle * clock / unit

    def weighted(name: str) -> float | None:
        pairs = [(launch[name], launch[_TIME]) for launch in launches if name in launch]
        total = sum(time for _, time in pairs)
        return sum(value * time for value, time in pairs) / total if total else None

    stalls = {reason: weighted(_STALL.format(reason)) or 0.0 for reason in STALLS}
    latency = sum(stalls.values())
    operations = [value * flops for name, flops in _OPERATIONS.items() if (value := mean(name)) is not None]
    return Counters(
        launches=len(launches),
        time_us=sum(times) / len(times),
        dram_bytes=mean(_DRAM),
        l2_bytes=mean(_L2),
        operations=sum(operations) if operations else None,
        use={unit: value for unit, name in _USE.items() if (value := weighted(name)) is not None},
        occupancy=weighted(_OCCUPANCY),
        l2_hit=weighted(_HIT),
        stalls={reason: stall / latency for reason, stall in stalls.items() if stall} if latency else {},
        l2_peak_gbs=peak(_L2_PEAK, 1e9),
        fp32_peak_tflops=peak(_FFMA_PEAK, 0.5e12),
    )
