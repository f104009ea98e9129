"""JSON from which the page's scripts draw a case's roofline and timeline."""

from collections.abc import Iterator
from typing import Any

from harness.schema.profile import Kernel, Profile, Region
from harness.schema.reason import rounded
from reports.profiles.parts import LABELS, is_fp32, kernel_parts, launch_parts, parts, work_of

TABLE_ROWS = 100  # most kernels of a case in the page's table


def drawing(profile: Profile) -> dict[str, Any]:
    """Return a dict with "kernels", "roofline" and "timeline", which the page's scripts draw.

    kernels: per kernel table row, its part of the model (index into `LABELS`). timeline: None without launches.
    """
    by_name = kernel_parts(profile)
    return {
        "kernels": [_label_index(by_name[kernel.name]) for kernel in profile.kernels[:TABLE_ROWS]],
        "roofline": roofline(profile),
        "timeline": timeline(profile) if profile.timeline.kernel else None,
    }


def roofline(profile: Profile) -> dict[str, Any]:
    """Return the peaks in GB/s and TFLOP/s, and a point per kernel and per part.

    points: per row of the kernel table (row number, FLOPs per DRAM byte, TFLOP/s, ms per unit of work,
        FLOPs per L2 byte, `is_fp32`). Rows whose FLOPs or DRAM bytes are zero or unknown are left out.
    parts: per part with a time and known work (index into `LABELS`, FLOPs per byte, TFLOP/s, ms per unit of work).
    """
    counters = [kernel.counters for kernel in profile.kernels if kernel.counters]
    peaks = {
        "copy_gbs": profile.peaks.get("copy_gbs"),
        "product_tflops": profile.peaks.get("product_tflops"),
        "l2_gbs": max((each.l2_peak_gbs for each in counters if each.l2_peak_gbs), default=None),
        "fp32_tflops": max((each.fp32_peak_tflops for each in counters if each.fp32_peak_tflops), default=None),
    }
    points = [
        (row, *_rounded(x, y, kernel.time_us / profile.units / 1e3, l2_intensity(kernel)), is_fp32(kernel))
        for row, kernel, x, y in _plotted(profile)
    ]
    return dict(zip(peaks, _rounded(*peaks.values()), strict=True)) | {
        "points": points,
        "parts": list(_part_points(profile)),
    }


def timeline(profile: Profile) -> dict[str, Any]:
    """Return a case's kernel launches in order as lists, with one integer per launch.

    range: index into "paths", the NVTX ranges' paths, whose first names are phases; -1 outside all ranges.
    kernel: row in the kernel table; `TABLE_ROWS` for a kernel without a row. part: index into `parts.LABELS`.
    wait: ns since the previous launch's end, negative if they overlap. time: duration in ns.
    """
    found, paths = profile.timeline, (each.path for each in profile.ranges)
    return {
        "paths": [path[1:] if path[1:] and path[0] == "request" else path for path in paths],
        "range": found.range,
        "kernel": [min(kernel, TABLE_ROWS) for kernel in found.kernel],
        "part": [_label_index(part) for part in launch_parts(profile)],
        "wait": found.wait_ns,
        "time": found.time_ns,
    }


def rates(kernel: Kernel) -> tuple[float | None, float | None, float | None]:
    """Return a kernel's (GB/s, TFLOP/s, FLOPs per byte) from hardware counters; None if unknown."""
    if not kernel.mean_us:
        return None, None, None
    moved, computed = kernel.dram_bytes, kernel.operations
    return (
        None if moved is None else moved / (kernel.mean_us * 1e3),
        None if computed is None else computed / (kernel.mean_us * 1e6),
        computed / moved if moved and computed is not None else None,
    )


def l2_intensity(kernel: Kernel) -> float | None:
    """Return a kernel's FLOPs per byte of L2 traffic; None if FLOPs or bytes are zero or not counted."""
    found = kernel.counters
    return found.operations / found.l2_bytes if found and found.operations and found.l2_bytes else None


def unplotted_share(region: Region) -> float:
    """Return the share of kernel time missing from the roofline; 0 if no kernel has a point."""
    total = sum(kernel.time_us for kernel in region.kernels)
    plotted = sum(kernel.time_us for _, kernel, *_ in _plotted(region))
    return 1 - plotted / total if plotted else 0.0


def _plotted(region: Region) -> Iterator[tuple[int, Kernel, float, float]]:
    """Yield (table row, kernel, FLOPs per byte, TFLOP/s) for each kernel in the roofline."""
    for row, kernel in enumerate(region.kernels[:TABLE_ROWS]):
        _, tflops, intensity = rates(kernel)
        if tflops and intensity:
            yield row, kernel, intensity, tflops


def _part_points(profile: Profile) -> Iterator[tuple[float | None, ...]]:
    found = {part.name: part.time_us / profile.units for part in parts(profile)}
    for part, work in work_of(profile, found).items():
        if part in found and part in LABELS and work.flops and work.bytes and found[part]:
            tflops = work.flops / (found[part] * 1e6)
            yield _label_index(part), *_rounded(work.flops / work.bytes, tflops, found[part] / 1e3)


def _rounded(*values: float | None) -> list[float | None]:
    return [rounded(value, 4) for value in values]


def _label_index(part: str) -> int:
    return list(LABELS).index(part)
