"""Why is a latency what it is? Work done in it, against what a GPU of the same model did at best in the same run.

The floor of a case, of a part of it or of a kernel is the longer of two times: its bytes at the measured bandwidth of a
copy, and its FLOPs at the measured rate of a large bfloat16 product. Neither is the most that the GPU can do: kernels
that only read, or that follow a rest, may pass them by a few percent.
"""

import math
from collections.abc import Mapping
from typing import Any

from harness.case import Case

RATE_COLUMNS = ("tflops", "gbs", "floor_ms", "bound", "floor_share", "copy_share")
# Metrics from which the rates follow.
CEILINGS = ("product_tflops", "copy_gbs")
WORK_METRICS = ("flops", "bytes", *CEILINGS)


def explanation(case: Case, metrics: Mapping[str, float | None], latency_ms: float) -> dict[str, Any]:
    """A value of every column of `RATE_COLUMNS`; what the metrics do not say is NaN, or "" for `bound`.

    tflops: 10^12 FLOPs a second; gbs: 10^9 bytes a second; bound: "memory" or "compute", whichever sets floor_ms;
    floor_share: floor over latency; copy_share: gbs over that of a copy. latency_ms may be NaN.
    """
    # A part of a layer does a part of its work, and which is not counted.
    work = {} if case.option("part") else metrics
    flops, moved = _known(work.get("flops")), _known(work.get("bytes"))
    latency_ms = _positive(latency_ms)
    computing_ms, moving_ms = needed_ms(flops, moved, work)
    floor_ms = math.nan if math.isnan(computing_ms + moving_ms) else max(computing_ms, moving_ms)
    return {
        "tflops": flops / (latency_ms * 1e9),
        "gbs": moved / (latency_ms * 1e6),
        "floor_ms": floor_ms,
        "bound": "" if math.isnan(floor_ms) else "memory" if moving_ms >= computing_ms else "compute",
        "floor_share": floor_ms / latency_ms,
        "copy_share": moving_ms / latency_ms,
    }


def needed_ms(flops: float | None, moved: float | None, ceilings: Mapping[str, float | None]) -> tuple[float, float]:
    """How long FLOPs take at `product_tflops`, and bytes at `copy_gbs`; NaN for what is not known."""
    computing_ms = _known(flops) / (_positive(_known(ceilings.get("product_tflops"))) * 1e9)
    moving_ms = _known(moved) / (_positive(_known(ceilings.get("copy_gbs"))) * 1e6)
    return computing_ms, moving_ms


def floor_us(flops: float | None, moved: float | None, ceilings: Mapping[str, float | None]) -> float | None:
    """The longer of the two times, or the one that is known; None where neither is."""
    known = [1e3 * each for each in needed_ms(flops, moved, ceilings) if not math.isnan(each)]
    return max(known, default=None)


def _known(value: float | None) -> float:
    """NaN for what is not known."""
    return math.nan if value is None else float(value)


def _positive(value: float) -> float:
    """What may be divided by; NaN for the rest."""
    return value if value > 0 else math.nan
