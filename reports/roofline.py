"""Why is a latency what it is? Work done in it, against what a GPU of the same model did at best in the same run.

The floor of a case, of a part of it or of a kernel is the longer of two times: its bytes at the measured bandwidth of a
copy, and its FLOPs at the measured rate of a large bfloat16 product. Neither is the most that the GPU can do: kernels
that only read, or that follow a rest, may pass them by a few percent. Of a case, whose floor systems are compared by,
both times must be known; of a part or a kernel, of which one may not be counted, the other is its floor
(`harness.schema.work.floor_ms`).
"""

import math
from collections.abc import Mapping
from typing import Any

from harness.schema.case import Case
from harness.schema.work import known, needed_ms, positive

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
    flops, moved = known(work.get("flops")), known(work.get("bytes"))
    latency_ms = positive(latency_ms)
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
