"""The parts of a profiled case: matrix products, TTT kernel, attention or scan, edges, head, other, gaps; their floors.

A kernel belongs to a part by the range it was launched in, where that says enough, else by its name.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from harness.profile_region import Kernel, Region

PRODUCTS, TTT, SCAN, EDGES, HEAD, OTHER, GAPS = "products", "ttt", "scan", "edges", "head", "other", "gaps"
LABELS = {
    PRODUCTS: "Matrix products",
    TTT: "TTT kernel",
    SCAN: "Attention or scan",
    EDGES: "Convolutions, norms, elementwise",
    HEAD: "Head",
    OTHER: "Other",
    GAPS: "Gaps: no kernel runs",
}
OPERATOR = "operator"
_COVERED = 0.9  # of a part's time, from which what was counted stands for all of it

# In this order: the first that a name matches.
_NAMES = (
    (TTT, re.compile(r"^_?(dual|primal)(_\w+)?$|linear_forward|mlp_forward|forward_(32_)?kernel|\bttt_")),
    (EDGES, re.compile(r"conv(?!ert)|norm(?!al)|swiglu|query_key|rotary|rope", re.I)),
    (
        SCAN,
        re.compile(
            r"flash|fmha|attention|attn|sdpa|selective|_scan|scan_|chunk|state_passing|state_update|delta_rule|wkv"
            r"|reshape_and_cache|splitkv",
            re.I,
        ),
    ),
    (PRODUCTS, re.compile(r"gemm|gemv|cutlass|xmma|nvjet|cublas|splitk|aten::(add|b|badd)?mm\b|aten::_?addmm", re.I)),
    (
        EDGES,
        re.compile(r"elementwise|silu|gelu|act_and_mul|vectorized|aten::(mul|add|sub|div|silu|gelu|sigmoid)_?$", re.I),
    ),
)
_LAYER = re.compile(r"^layer \d+$")


@dataclass(frozen=True)
class Part:
    """A part of the time of a region. floor_us: the least that what it moved and computed could take; None: unknown."""

    name: str
    time_us: float
    launches: int
    floor_us: float | None = None

    @property
    def label(self) -> str:
        """The part in words."""
        return LABELS[self.name]


def part_of(name: str, path: tuple[str, ...] = (), has_layers: bool = False) -> str:
    """The part that a kernel belongs to. path: ranges around its launch; has_layers: whether ranges tell layers."""
    if OPERATOR in path:
        return TTT
    part = next((part for part, pattern in _NAMES if pattern.search(name)), OTHER)
    outside = has_layers and bool(path) and not any(_LAYER.match(each) for each in path)
    return HEAD if outside and part == PRODUCTS else part


def parts(region: Region) -> list[Part]:
    """The parts of a region that take time, in the order of `LABELS`; their times add up to the region's.

    Where kernels run at once, each gets its share of the time in which any ran.
    """
    times: dict[str, float] = defaultdict(float)
    launches: dict[str, float] = defaultdict(float)
    floors: dict[str, float] = defaultdict(float)
    covered: dict[str, float] = defaultdict(float)
    for kernel, part, share in _shares(region):
        times[part] += kernel.time_us * share
        launches[part] += kernel.launches * share
        floor_us = kernel_floor_us(kernel, region)
        if floor_us is not None:
            floors[part] += floor_us * share
            covered[part] += kernel.time_us * share
    together = sum(times.values())
    scale = region.busy_us / together if together else 1.0
    found = {
        part: Part(
            part,
            time_us * scale,
            round(launches[part]),
            floors[part] * time_us / covered[part] if covered[part] >= _COVERED * time_us > 0 else None,
        )
        for part, time_us in times.items()
    }
    found[GAPS] = Part(GAPS, region.gaps_us, 0, 0.0)
    return [found[name] for name in LABELS if name in found and found[name].time_us > 0]


def kernel_floor_us(kernel: Kernel, region: Region) -> float | None:
    """The least that a kernel's launches could take: what they moved at a copy's rate, or computed at a product's."""
    counters = kernel.counters
    if counters is None:
        return None
    times = []
    copy, product = region.ceilings.get("copy_gbs"), region.ceilings.get("product_tflops")
    if counters.dram_bytes is not None and copy:
        times.append(counters.dram_bytes * kernel.launches / (copy * 1e3))
    if counters.operations is not None and product:
        times.append(counters.operations * kernel.launches / (product * 1e6))
    return max(times, default=None)


def kernel_parts(region: Region) -> dict[str, str]:
    """The part of each kernel by its name: of several, the one in which it takes longest."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel, part, share in _shares(region):
        found[kernel.name][part] += share
    return {name: max(shares, key=lambda part: shares[part]) for name, shares in found.items()}


def _shares(region: Region) -> Iterator[tuple[Kernel, str, float]]:
    """Every kernel with a part and the share of its time in it, as the ranges tell it."""
    has_layers = any(_LAYER.match(name) for each in region.ranges for name in each.path)
    by_kernel: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for each in region.ranges:
        for inner in each.kernels:
            part = part_of(region.kernels[inner.kernel].name, each.path, has_layers)
            by_kernel[inner.kernel][part] += inner.time_us
    for place, kernel in enumerate(region.kernels):
        shares = by_kernel.get(place, {})
        total = sum(shares.values())
        if not total:
            yield kernel, part_of(kernel.name), 1.0
        for part, time_us in shares.items() if total else ():
            yield kernel, part, time_us / total
