"""The parts of a profiled case, such as GEMMs and attention, and their lower bounds.

A kernel's name and the NVTX ranges around its launch decide to which part it belongs. A part's lower bound is the
time that its work takes at the region's measured peaks. The work is the adapter's count (`Region.work`), or else is
measured by hardware counters.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.measure.ranges import OPERATOR, is_layer
from harness.schema.profile import Kernel, Region
from harness.schema.work import EDGES, HEAD, OTHER, PRODUCTS, SCAN, TTT, Work, lower_bound_ms

IDLE = "gaps"  # idle time
LABELS = {
    PRODUCTS: "GEMMs",
    TTT: "TTT kernel",
    SCAN: "Attention or scan",
    EDGES: "Convolutions, norms, elementwise",
    HEAD: "Head",
    OTHER: "Other",
    IDLE: "Idle",
}
_USED = 1.0  # percent of the tensor cores' peak from which a kernel counts as using them
_COVERED = 0.9  # share of a part's time that kernels with known bounds must take to stand for the whole part

# Patterns of kernel names by part; the first match counts.
_NAMES = (
    (TTT, re.compile(r"^_?(dual|primal)(_\w+)?$|\b(linear_forward|mlp_forward|forward_(32_)?kernel|ttt_)")),
    (EDGES, re.compile(r"conv(?!ert)|norm(?!al)|swiglu(?!_product)|query_key|rotary|rope", re.I)),
    (
        SCAN,
        re.compile(
            r"flash|fmha|attention|attn|sdpa|selective|_scan|scan_|chunk|state_passing|state_update|delta_rule|wkv"
            r"|reshape_and_cache|splitkv|kernel_mha|kvcache",
            re.I,
        ),
    ),
    (
        PRODUCTS,
        re.compile(
            r"swiglu_product|few_rows|gemm|gemv|cutlass|xmma|nvjet|cublas|splitk|aten::(add|b|badd)?mm\b|aten::_?addmm",
            re.I,
        ),
    ),
    (
        EDGES,
        re.compile(
            r"elementwise|silu|gelu|act_and_mul|vectorized|aten::(mul|add|sub|div|silu|gelu|sigmoid|pow|sum|mean|rsqrt|exp|neg|tanh)_?$"
            r"|^triton_(poi|red|per)_fused",  # kernels of torch.compile: pointwise, reduction, persistent reduction
            re.I,
        ),
    ),
)


@dataclass(frozen=True)
class ProfilePart:
    """One part of a region's computation, such as the GEMMs, with its time.

    time_us: the part's time in the region.
    lower_bound_us: the part's lower bound; None if unknown.
    from_adapter: whether the lower bound comes from the adapter's count of the work, not from hardware counters.
    with_head: whether the part is the GEMMs and includes the LM head's, because the profile does not tell them apart.
    """

    name: str
    time_us: float
    launches: int
    lower_bound_us: float | None = None
    from_adapter: bool = False
    with_head: bool = False

    @property
    def label(self) -> str:
        return LABELS[self.name] + (", with the head" if self.with_head else "")


def within_sentence(part: str) -> str:
    """Return a part's label for use within a sentence: lower case, except for abbreviations."""
    label = LABELS[part]
    return label if label[1].isupper() else label[0].lower() + label[1:]


def part_of(name: str, path: tuple[str, ...] = (), has_layers: bool = False) -> str:
    """Return the part of the model to which a kernel belongs, a key of `LABELS`.

    path: names of the NVTX ranges around the kernel's launch, outermost first.
    has_layers: whether layers have NVTX ranges, so that a GEMM inside other ranges only is the LM head.
    """
    if OPERATOR in path:
        return TTT
    part = next((part for part, pattern in _NAMES if pattern.search(name)), OTHER)
    outside = has_layers and bool(path) and not any(map(is_layer, path))
    return HEAD if outside and part == PRODUCTS else part


def parts(region: Region) -> list[ProfilePart]:
    """Return the region's parts in `LABELS` order; their times add up to the region's time.

    If kernels overlap, their times are scaled down so that the parts other than idle add up to the busy time.
    """
    times: dict[str, float] = defaultdict(float)
    launches: dict[str, float] = defaultdict(float)
    lower_bounds: dict[str, float] = defaultdict(float)
    covered: dict[str, float] = defaultdict(float)
    for kernel, part, share in _shares(region):
        times[part] += kernel.time_us * share
        launches[part] += kernel.launches * share
        lower_bound_us = kernel_lower_bound_us(kernel, region)
        if lower_bound_us is not None:
            lower_bounds[part] += lower_bound_us * share
            covered[part] += kernel.time_us * share
    together = sum(times.values())
    scale = region.busy_us / together if together else 1.0
    work = work_of(region, [part for part, time_us in times.items() if time_us])
    found = {IDLE: ProfilePart(IDLE, region.idle_us, 0, 0.0)}
    for part, time_us in times.items():
        counted = lower_bounds[part] * time_us / covered[part] if covered[part] >= _COVERED * time_us > 0 else None
        least = work.get(part)
        modelled = lower_bound_ms(least.flops, least.bytes, region.peaks) if least else None
        lower_bound = counted if modelled is None else 1e3 * modelled * region.units
        shown = None if lower_bound is None else lower_bound * scale  # overlapping parts share the time
        with_head = part == PRODUCTS and HEAD in region.work and HEAD not in times
        found[part] = ProfilePart(part, time_us * scale, round(launches[part]), shown, modelled is not None, with_head)
    return [found[name] for name in LABELS if name in found and found[name].time_us > 0]


def work_of(region: Region, present: Iterable[str]) -> dict[str, Work]:
    """Return the adapter's {part: least FLOPs and bytes per unit of work, such as a step}.

    present: the parts that have kernels.
    If both the LM head and the GEMMs are counted, and the head is not present, its work is added to the GEMMs' work.
    """
    work = dict(region.work)
    if HEAD in work and HEAD not in present and PRODUCTS in work:
        work[PRODUCTS] += work.pop(HEAD)
    return work


def kernel_lower_bound_us(kernel: Kernel, region: Region) -> float | None:
    """Return the lower bound in µs for all launches of a kernel together; None if unknown."""
    each = lower_bound_ms(kernel.operations, kernel.dram_bytes, kernel_peaks(kernel, region))
    return None if each is None else 1e3 * each * kernel.launches


def is_fp32(kernel: Kernel) -> bool:
    """Return whether a kernel hardly uses tensor cores (below 1%) and its FP32 peak is known."""
    counters = kernel.counters
    return counters is not None and bool(counters.fp32_peak_tflops) and counters.use.get("tensor", _USED) < _USED


def kernel_peaks(kernel: Kernel, region: Region) -> dict[str, float | None]:
    """Return the region's peaks; if `is_fp32(kernel)`, the FP32 peak replaces the GEMM rate."""
    if kernel.counters is None or not is_fp32(kernel):
        return region.peaks
    return {**region.peaks, "product_tflops": kernel.counters.fp32_peak_tflops}


def kernel_parts(region: Region) -> dict[str, str]:
    """Return {kernel name: the part in which the kernel takes most of its time}."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel, part, share in _shares(region):
        found[kernel.name][part] += share
    return {name: max(shares, key=lambda part: shares[part]) for name, shares in found.items()}


def launch_parts(region: Region) -> list[str]:
    part_finder, by_name = _part_finder(region), kernel_parts(region)
    pairs = zip(region.timeline.kernel, region.timeline.range, strict=True)
    names = ((region.kernels[kernel].name, at) for kernel, at in pairs)
    return [part_finder(name, region.ranges[at].path) if at >= 0 else by_name[name] for name, at in names]


def _part_finder(region: Region) -> Callable[[str, tuple[str, ...]], str]:
    only = next(iter(region.work)) if len(region.work) == 1 else ""  # the whole region is one part
    has_layers = _outside_is_head([each.path for each in region.ranges])
    return lambda name, path: only if only in LABELS else part_of(name, path, has_layers)


def _outside_is_head(paths: Sequence[tuple[str, ...]]) -> bool:
    """Whether layers have NVTX ranges and every other range encloses a layer."""
    layered = [path for path in paths if any(map(is_layer, path))]
    return bool(layered) and all(any(each[: len(path)] == path for each in layered) for path in paths)


def _shares(region: Region) -> Iterator[tuple[Kernel, str, float]]:
    """Yield (kernel, part, the part's share of the kernel's time: 1 without NVTX ranges)."""
    part_finder = _part_finder(region)
    by_kernel: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for each in region.ranges:
        for inner in each.kernels:
            by_kernel[inner.kernel][part_finder(region.kernels[inner.kernel].name, each.path)] += inner.time_us
    for index, kernel in enumerate(region.kernels):
        shares = by_kernel.get(index, {})
        total = sum(shares.values())
        if not total:
            yield kernel, part_finder(kernel.name, ()), 1.0
        for part, time_us in shares.items() if total else ():
            yield kernel, part, time_us / total
