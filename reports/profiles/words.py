"""Sentences on a profiled case: which parts take the time, and the bottleneck."""

import re
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple, TypeGuard

from harness.quality import by_case, timed
from harness.schema.profile import Kernel, Profile, Region
from harness.schema.reason import format_number
from harness.schema.record import Record
from reports.profiles.parts import IDLE, is_fp32, kernel_peaks, parts, within_sentence

HIGH = 0.6  # share of a peak from which the unit with that peak is the bottleneck
TOLERANCE = 0.03  # share of a record's latency within which a profile agrees with it
_MIN_SHARE = 0.005  # a smaller share would be shown as 0%
_MIN_IDLE = 0.1  # share of the time from which the sentence has idle time
_SHORT = 80  # characters of a short name
_WRAPPED = re.compile(r"(void )?cutlass::device_kernel<([\w:]+::enable_\w+<)?(?P<kernel>[\w:]+)")
UNITS = {"sm": "SM pipelines", "l2": "L2", "dram": "DRAM", "tensor": "tensor cores"}
STALLS = {
    "barrier": "on barriers",
    "branch_resolving": "on branches",
    "dispatch_stall": "on the dispatcher",
    "drain": "on draining stores",
    "gmma": "on tensor-core results",
    "imc_miss": "on the constant cache",
    "lg_throttle": "on the global-memory queue",
    "long_scoreboard": "on data from memory or the L2",
    "math_pipe_throttle": "on a busy arithmetic pipeline",
    "membar": "on memory fences",
    "mio_throttle": "on the shared-memory queue",
    "misc": "for other reasons",
    "no_instruction": "on an instruction fetch",
    "short_scoreboard": "on data from shared memory or special functions",
    "sleeping": "asleep",
    "tex_throttle": "on the texture queue",
    "wait": "on the fixed latency of instructions",
}
WORKING = ("selected", "not_selected")  # not stalls: a warp issues, or is ready while another one issues


class Recorded(NamedTuple):
    """A case's recorded latency. concurrent: number of concurrent sequences; 0: the whole batch."""

    ms: float
    concurrent: int = 0


def sentences(region: Region) -> tuple[str, str]:
    """Return two sentences: which parts take longest, and the bottleneck."""
    return _parts_sentence(region), _bottleneck_sentence(region)


def agreement(region: Region, recorded: Recorded | None) -> str:
    """Return profiled time and recorded latency in words; on a GPU, with a note if they disagree."""
    text = f"{format_number(region.unit_ms, 4)} ms of kernels and idle time"
    if not (recorded and recorded.ms):
        return f"{text}; the run has no recorded latency for this case"
    off = region.unit_ms / recorded.ms - 1
    agrees = abs(off) <= TOLERANCE or _is_on_cpu(region)  # on a CPU, the profiler slows every operator
    beyond = "" if agrees else f": not within {TOLERANCE:.0%}"
    by = "0.0%" if round(off, 3) == 0 else f"{off:+.1%}".replace("-", "−")
    return f"{text}, recorded {format_number(recorded.ms, 4)} ms ({by}{beyond})"


def _is_on_cpu(region: Region) -> bool:
    """Return whether the region ran on a CPU, where a profile has operators, not kernels."""
    return any(kernel.name.startswith(("aten::", "Torch-Compiled Region")) for kernel in region.kernels)


def recorded(records: Iterable[Record]) -> dict[str, Recorded]:
    """Return {case key: recorded latency}; the latency is the median of the processes' medians."""
    return {
        key: Recorded(median(median(each.samples_ms) for each in found), min(map(_concurrent, found)))
        for key, found in by_case(timed(records)).items()
    }


def _concurrent(record: Record) -> int:
    case = record.case
    # In forward, the limit does not apply: the KV cache of a prompt is freed after its pass.
    limit = record.metrics.get("sequences_at_once") if case.phase != "forward" else None
    return min(case.batch, int(limit or case.batch))


def _parts_sentence(region: Region) -> str:
    total = region.region_us
    if not total:
        return "Nothing ran."
    shares = sorted(((part.time_us / total, part.name) for part in parts(region)), reverse=True)
    busy = [(share, name) for share, name in shares if name != IDLE]
    words = [f"{within_sentence(name)} {share:.0%}" for share, name in busy[:2] if share >= _MIN_SHARE]
    idle = region.idle_us / total
    clauses = [f"{' and '.join(words)} of the time"] if words else []
    clauses += [f"idle {idle:.0%}, {_idle(region)}"] if idle >= _MIN_IDLE else []
    joined = "; ".join(clauses)
    return f"{joined[0].upper()}{joined[1:]}." if clauses else "No part takes a measurable share of the time."


def _bottleneck_sentence(region: Region) -> str:
    idle = region.idle_us / region.region_us if region.region_us else 0.0
    kernel = max(region.kernels, key=lambda each: each.time_us, default=None)
    if idle > 0.5:
        return f"Mostly idle: {cause(region)}."
    if kernel is None or not kernel.time_us:
        return "No kernel took time."
    if _is_on_cpu(region):  # no counter counts operators
        return f"{short(kernel.name)} takes {_share_of_kernels(kernel, region):.0%} of the operators' time."
    return f"{short(kernel.name)} ({_share_of_time(kernel, region):.0%} of the time): {bound_of(kernel, region)}."


def longest(region: Region) -> str:
    """Return the kernel with the most total time, as Markdown: name, share of time, bottleneck."""
    kernel = max(region.kernels, key=lambda each: each.time_us)
    return f"`{short(kernel.name)}`, {_share_of_time(kernel, region):.0%}: {bound_of(kernel, region)}"


def _share_of_time(kernel: Kernel, region: Region) -> float:
    return _share_of_kernels(kernel, region) * region.busy_us / region.region_us


def _share_of_kernels(kernel: Kernel, region: Region) -> float:
    return kernel.time_us / sum(each.time_us for each in region.kernels)


def _idle(region: Region) -> str:
    if region.longest_gap_us > region.idle_us / 2:
        return f"most of it in one wait of {format_number(region.longest_gap_us / 1e3, 2)} ms"
    launches = max(1, sum(kernel.launches for kernel in region.kernels))
    each, count = ("step", region.units) if _between_steps(region) else ("launch", launches)
    return f"{format_number(region.idle_us / count, 2)} µs per {each}: {cause(region)}"


def cause(region: Region) -> str:
    """Return the cause of the region's idle time in words, such as `CPU launch overhead`."""
    if region.longest_gap_us > region.idle_us / 2:
        return "one long wait for the host"
    if _between_steps(region):
        return "the engine's CPU work between steps"
    if _is_on_cpu(region):
        return "Python overhead"
    is_graph = isinstance(region, Profile) and region.case.timing == "graph"
    return "launch latency within the CUDA graph" if is_graph else "CPU launch overhead"


def _between_steps(region: Region) -> TypeGuard[Profile]:
    if not isinstance(region, Profile) or (region.case.timing, region.case.phase) != ("engine", "generate"):
        return False
    return region.longest_gap_us * region.units > region.idle_us / 2


def bound_of(kernel: Kernel, region: Region) -> str:
    counters = kernel.counters
    if counters is None:
        return "bottleneck unknown without hardware counters"
    peaks = kernel_peaks(kernel, region)
    memory = _share_of_peak(kernel.dram_bytes, kernel.mean_us * 1e3, peaks.get("copy_gbs"))
    compute = _share_of_peak(kernel.operations, kernel.mean_us * 1e6, peaks.get("product_tflops"))
    if memory is not None and memory >= HIGH and memory >= (compute or 0):
        return f"{memory:.0%} of peak bandwidth{_counted_times(kernel)}: memory-bound"
    if compute is not None and compute >= HIGH and is_fp32(kernel):
        return f"{compute:.0%} of the FP32 peak{_counted_times(kernel)}: compute-bound"
    if compute is not None and compute >= HIGH:
        busy = counters.use.get("tensor", 0.0) / 100
        tensor = f", tensor cores busy {busy:.0%} of the time" if busy >= HIGH else ""
        return f"{compute:.0%} of the peak GEMM rate{_counted_times(kernel)}: compute-bound{tensor}"
    use = {unit: percent / 100 for unit, percent in counters.use.items() if unit in UNITS}
    if not use:
        return "utilization not measured"
    unit = max(use, key=lambda each: use[each])
    if use[unit] >= HIGH:
        return f"bound by {UNITS[unit]} at {use[unit]:.0%} of peak"
    if uncounted := [UNITS[each] for each in UNITS if each not in use]:
        return f"{UNITS[unit]} at {use[unit]:.0%} of peak, {' and '.join(uncounted)} not counted: bottleneck unknown"
    stalls = [(share, STALLS.get(each, each)) for each, share in counters.stalls.items() if each not in WORKING]
    share, reason = max(stalls, default=(0.0, ""))
    stalled = f"; warps stall {reason} {share:.0%} of the time" if share >= _MIN_SHARE else ""
    return f"no unit above {HIGH:.0%} ({UNITS[unit]} {use[unit]:.0%}): latency-bound{stalled}"


def _counted_times(kernel: Kernel) -> str:
    if not (kernel.counters and kernel.is_counted_unlike):
        return ""
    counted, mean = map(format_number, (kernel.counters.time_us, kernel.mean_us))
    return f" in the counted launches ({counted} µs; mean {mean} µs)"


def short(name: str) -> str:
    """Return a kernel's name without templates and arguments, at most 80 characters.

    The name of a CUTLASS kernel is the template argument of its entry point. Memcpy and Memset names stay as they are.
    """
    if name.startswith(("Memcpy", "Memset")):
        return name
    if wrapped := _WRAPPED.match(name):
        name = wrapped["kernel"]
    outside, depth = "", 0
    for character in name.removeprefix("void ").partition("…")[0]:  # where `short_name` truncated it
        depth += character in "<("
        if depth == 0:
            outside += character
        depth -= character in ">)"
    scopes = [part for part in outside.split("::") if part] or [name]
    plain = "::".join(scopes[-2:]).strip()
    return plain if len(plain) <= _SHORT else f"{plain[: _SHORT - 1]}…"


def _share_of_peak(amount: float | None, time: float, peak: float | None) -> float | None:
    return amount / time / peak if amount is not None and time and peak else None
