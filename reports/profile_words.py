"""What bounds a profiled case, in two sentences made from its numbers."""

from harness.profile_region import Counters, Kernel, Region
from reports.profile_parts import GAPS, LABELS, parts

HIGH = 0.6  # of a ceiling or of a unit's peak, from which that is what bounds
_GAPS = 0.1  # of the time, from which gaps are worth their words
UNITS = {"sm": "the SMs' pipelines", "l2": "the L2", "dram": "memory", "tensor": "the matrix units"}
WAITS = {
    "barrier": "for barriers",
    "branch_resolving": "for branches",
    "dispatch_stall": "for the dispatcher",
    "drain": "for stores to drain",
    "gmma": "for the matrix units' results",
    "imc_miss": "for constants",
    "lg_throttle": "for the queue of global memory",
    "long_scoreboard": "for data from memory or the L2",
    "math_pipe_throttle": "for a busy arithmetic pipeline",
    "membar": "for memory fences",
    "mio_throttle": "for the queue of shared memory",
    "misc": "for other reasons",
    "no_instruction": "for instructions to be fetched",
    "short_scoreboard": "for data from shared memory or special functions",
    "sleeping": "asleep",
    "tex_throttle": "for the texture queue",
    "wait": "for the fixed latency of instructions",
}
_WORKING = ("selected", "not_selected")  # a warp that issues, or could


def sentences(region: Region) -> tuple[str, str]:
    """Where the time goes, and what bounds the kernel that takes most of it."""
    return _where(region), _why(region)


def _where(region: Region) -> str:
    total = region.region_us
    if not total:
        return "Nothing ran."
    shares = sorted(((part.time_us / total, part.name) for part in parts(region)), reverse=True)
    busy = [(share, name) for share, name in shares if name != GAPS]
    words = [f"{LABELS[name].lower().replace('ttt', 'TTT')} {share:.0%}" for share, name in busy[:2] if share >= 0.005]
    gaps = region.gaps_us / total
    said = f"{' and '.join(words)} of the time"
    said = said[0].upper() + said[1:]
    return f"{said}; gaps take {gaps:.0%}: {_cause(region)}." if gaps >= _GAPS else f"{said}."


def _why(region: Region) -> str:
    gaps = region.gaps_us / region.region_us if region.region_us else 0.0
    kernel = region.kernels[0] if region.kernels else None
    if kernel is None or (gaps > 0.5):
        return f"Gaps take most of it: bound by {_cause(region)}."
    share = kernel.time_us / sum(each.time_us for each in region.kernels)
    return f"{short(kernel.name)} ({share:.0%} of the kernels' time): {bound_of(kernel, region)}."


def _cause(region: Region) -> str:
    """What gaps are made of; operators of a CPU wait for Python, which calls them."""
    return "Python" if region.kernels and region.kernels[0].name.startswith("aten::") else "launches"


def bound_of(kernel: Kernel, region: Region) -> str:
    """What bounds a kernel, in words without a full stop."""
    counters = kernel.counters
    if counters is None:
        return "what bounds it was not counted"
    moved = _share_of_copy(kernel, counters, region)
    computed = _share_of_product(kernel, counters, region)
    if moved is not None and moved >= HIGH and moved >= (computed or 0):
        return f"{moved:.0%} of a copy's bandwidth: bound by memory"
    if computed is not None and computed >= HIGH:
        return f"{computed:.0%} of a large product's rate: bound by the matrix units"
    use = {unit: percent / 100 for unit, percent in counters.use.items() if unit in UNITS}
    if not use:
        return "the use of its units was not counted"
    unit = max(use, key=lambda each: use[each])
    if use[unit] >= HIGH:
        return f"{UNITS[unit]} at {use[unit]:.0%} of peak: bound by {UNITS[unit]}"
    waiting = waits(counters)
    waited = f"; warps wait {waiting[0][0]} {waiting[0][1]:.0%} of the time" if waiting else ""
    return f"no unit above {HIGH:.0%} ({UNITS[unit]} {use[unit]:.0%}): latency{waited}"


def waits(counters: Counters, most: int = 3) -> list[tuple[str, float]]:
    """(what warps wait for, the share of their time), the longest first."""
    found = [(WAITS.get(reason, reason), share) for reason, share in counters.stalls.items() if reason not in _WORKING]
    return sorted(found, key=lambda each: -each[1])[:most]


def roofs(kernel: Kernel, region: Region) -> tuple[float | None, float | None]:
    """(share of a copy's bandwidth, share of a large product's rate) of a kernel; None where it is not known."""
    if kernel.counters is None:
        return None, None
    return _share_of_copy(kernel, kernel.counters, region), _share_of_product(kernel, kernel.counters, region)


def short(name: str) -> str:
    """A kernel's name without what it returns, its templates and its arguments; its last two scopes."""
    outside, depth = "", 0
    for character in name.removeprefix("void "):
        depth += character in "<("
        if depth == 0:
            outside += character
        depth -= character in ">)"
    plain = "::".join(part for part in outside.split("::") if part)[-80:] or name[:80]
    return "::".join(plain.split("::")[-2:]).strip()


def _share_of_copy(kernel: Kernel, counters: Counters, region: Region) -> float | None:
    ceiling = region.ceilings.get("copy_gbs")
    if not ceiling or counters.dram_bytes is None or not kernel.time_us:
        return None
    return counters.dram_bytes * kernel.launches / (kernel.time_us * 1e3) / ceiling


def _share_of_product(kernel: Kernel, counters: Counters, region: Region) -> float | None:
    ceiling = region.ceilings.get("product_tflops")
    if not ceiling or counters.operations is None or not kernel.time_us:
        return None
    return counters.operations * kernel.launches / (kernel.time_us * 1e6) / ceiling
