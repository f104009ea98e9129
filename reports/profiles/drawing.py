"""What the page's scripts draw of a profiled case: its roofline and the timeline of a step, as compact JSON values."""

from collections.abc import Iterator
from typing import Any

from harness.schema.profile import Kernel, Profile, Region
from reports.profiles.parts import LABELS, is_fp32, kernel_parts, launch_parts, parts, work_of

NAMED = 100  # kernels of a case that have a name in the page; the rest are told together


def drawing(profile: Profile) -> dict[str, Any]:
    """What `section.js` draws.

    kernels: the part of each that has a row, and so its name, in the page's table. roofline, timeline: see the
    functions; no timeline where no profiler told the times of single launches.
    """
    by_name = kernel_parts(profile)
    return {
        "kernels": [_place(by_name[kernel.name]) for kernel in profile.kernels[:NAMED]],
        "roofline": roofline(profile),
        "timeline": timeline(profile) if profile.timeline.kernel else None,
    }


def roofline(profile: Profile) -> dict[str, Any]:
    """Ceilings in GB/s and TFLOP/s, and the points under them.

    points: (kernel, FLOPs a byte, TFLOP/s, ms of a unit, FLOPs a byte of the L2, whether FP32 is its peak).
    parts: (part, FLOPs a byte, TFLOP/s, ms of a unit), of the work that the adapter counted.
    """
    counters = [kernel.counters for kernel in profile.kernels if kernel.counters]
    return {
        "copy_gbs": _rounded(profile.ceilings.get("copy_gbs")),
        "product_tflops": _rounded(profile.ceilings.get("product_tflops")),
        "l2_gbs": _rounded(max((each.l2_peak_gbs for each in counters if each.l2_peak_gbs), default=None)),
        "fp32_tflops": _rounded(
            max((each.fp32_peak_tflops for each in counters if each.fp32_peak_tflops), default=None)
        ),
        "points": [
            (
                place,
                _rounded(intensity),
                _rounded(tflops),
                _rounded(kernel.time_us / profile.units / 1e3),
                _rounded(l2_intensity(kernel)),
                is_fp32(kernel),
            )
            for place, kernel, intensity, tflops in _placed(profile)
        ],
        "parts": list(_part_points(profile)),
    }


def timeline(profile: Profile) -> dict[str, Any]:
    """The launches of a step: columns of whole numbers, and the paths of the ranges that they refer to.

    wait: ns from the end of the launch before; time: ns; kernel: its number, `NAMED` for one without a name.
    """
    found = profile.timeline
    return {
        "paths": [each.path for each in profile.ranges],
        "range": found.range,
        "kernel": [min(kernel, NAMED) for kernel in found.kernel],
        "part": [_place(part) for part in launch_parts(profile)],
        "wait": found.wait_ns,
        "time": found.time_ns,
    }


def rates(kernel: Kernel) -> tuple[float | None, float | None, float | None]:
    """(GB/s, TFLOP/s, FLOPs a byte) of a kernel; None where it is not known."""
    if not kernel.mean_us:
        return None, None, None
    moved, computed = kernel.dram_bytes, kernel.operations
    return (
        None if moved is None else moved / (kernel.mean_us * 1e3),
        None if computed is None else computed / (kernel.mean_us * 1e6),
        computed / moved if moved and computed is not None else None,
    )


def l2_intensity(kernel: Kernel) -> float | None:
    """FLOPs a byte through the L2; None where either was not counted."""
    counted = kernel.counters
    return counted.operations / counted.l2_bytes if counted and counted.operations and counted.l2_bytes else None


def unplaced(region: Region) -> float:
    """The share of the kernels' time that has no point: not counted, or without FLOPs; 0 where nothing was counted."""
    total = sum(kernel.time_us for kernel in region.kernels)
    placed = sum(kernel.time_us for _, kernel, *_ in _placed(region))
    return 1 - placed / total if placed else 0.0


def _placed(region: Region) -> Iterator[tuple[int, Kernel, float, float]]:
    """(place, kernel, FLOPs a byte, TFLOP/s) of the kernels that a logarithmic roofline can show."""
    for place, kernel in enumerate(region.kernels[:NAMED]):
        _, tflops, intensity = rates(kernel)
        if tflops and intensity:
            yield place, kernel, intensity, tflops


def _part_points(profile: Profile) -> Iterator[tuple[int, float | None, float | None, float | None]]:
    found = {part.name: part.time_us / profile.units for part in parts(profile)}
    for part, work in work_of(profile, found).items():
        if part in found and part in LABELS and work.flops and work.bytes and found[part]:
            tflops = work.flops / (found[part] * 1e6)
            yield _place(part), _rounded(work.flops / work.bytes), _rounded(tflops), _rounded(found[part] / 1e3)


def _place(part: str) -> int:
    return list(LABELS).index(part)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
