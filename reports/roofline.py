"""Why is a latency what it is? Work done in it, against what the same GPU did at best in the same process.

The floor of a case is the longer of two times: its least bytes at the measured bandwidth of a copy, and its FLOPs at
the measured rate of a large bfloat16 product.
"""

import math
from typing import Any

from harness.record import Record

RATE_COLUMNS = ("tflops", "gbs", "floor_ms", "bound", "floor_share", "copy_share")
# What the compiler made of the kernels, for how many sequences the whole model's state fits beside its weights, and
# how far generated probabilities drifted: as the record says them.
METRIC_COLUMNS = (
    "launches",
    "registers",
    "spilled_bytes",
    "shared_bytes",
    "sequences_that_fit",
    "total_variation_mean",
    "total_variation_max",
    "argmax_disagreement",
)
EXPLANATION_COLUMNS = RATE_COLUMNS + METRIC_COLUMNS


def explanation(record: Record, latency_ms: float) -> dict[str, Any]:
    """A value of every column of `EXPLANATION_COLUMNS`; what the record does not say is NaN, or "" for `bound`.

    tflops: 10^12 FLOPs a second; gbs: 10^9 bytes a second; bound: "memory" or "compute", whichever sets floor_ms;
    floor_share: floor over latency; copy_share: gbs over that of a copy. latency_ms may be NaN.
    """
    values: dict[str, Any] = {name: _metric(record, name) for name in METRIC_COLUMNS}
    # A part of a layer does a part of its work, and which is not counted.
    work = {} if record.case.option("part") else record.metrics
    flops, moved = _known(work.get("flops")), _known(work.get("bytes"))
    latency_ms = _positive(latency_ms)
    computing_ms = flops / (_positive(_metric(record, "product_tflops")) * 1e9)
    moving_ms = moved / (_positive(_metric(record, "copy_gbs")) * 1e6)
    floor_ms = math.nan if math.isnan(computing_ms + moving_ms) else max(computing_ms, moving_ms)
    return values | {
        "tflops": flops / (latency_ms * 1e9),
        "gbs": moved / (latency_ms * 1e6),
        "floor_ms": floor_ms,
        "bound": "" if math.isnan(floor_ms) else "memory" if moving_ms >= computing_ms else "compute",
        "floor_share": floor_ms / latency_ms,
        "copy_share": moving_ms / latency_ms,
    }


def _metric(record: Record, name: str) -> float:
    return _known(record.metrics.get(name))


def _known(value: float | None) -> float:
    """NaN for what is not known."""
    return math.nan if value is None else float(value)


def _positive(value: float) -> float:
    """What may be divided by; NaN for the rest."""
    return value if value > 0 else math.nan
