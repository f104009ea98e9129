"""The roofline of a case: its work against peaks measured in the same run.

The lower bound is the longer of two times: bytes at the bandwidth of a copy, FLOPs at the rate of a large bfloat16
GEMM. Kernels that only read, or that run on a cool GPU, may exceed these peaks by a few percent.
A case has no lower bound if either time is unknown. In profiles, a kernel or part of a region (such as its GEMMs) with
one unknown time has the other time as lower bound (`harness.schema.work.lower_bound_ms`).
"""

import math
from collections.abc import Mapping
from typing import Any

from harness.schema.case import Case
from harness.schema.work import PEAKS, known, needed_ms, positive

RATE_COLUMNS = ("tflops", "gbs", "lower_bound_ms", "bound", "lower_bound_share", "copy_share")
WORK_METRICS = ("flops", "bytes", *PEAKS)


def roofline_columns(case: Case, metrics: Mapping[str, float | None], latency_ms: float) -> dict[str, Any]:
    """Return {column: value} of `RATE_COLUMNS` for a case; unknown: NaN, or "" for `bound`.

    metrics: the case's work and the measured peaks, by the names in `WORK_METRICS`.
    latency_ms: the case's latency; NaN if unknown.
    tflops, gbs: achieved TFLOP/s and GB/s.
    lower_bound_ms: the longer of memory time (at a copy's bandwidth) and compute time (at a large GEMM's rate).
    bound: "memory" or "compute", whichever time is longer.
    lower_bound_share: lower bound / latency. copy_share: `gbs` / bandwidth of a copy.
    """
    # The work of a part of a layer is not counted.
    work = {} if case.option("part") else metrics
    flops, byte_count = known(work.get("flops")), known(work.get("bytes"))
    latency_ms = positive(latency_ms)
    compute_ms, memory_ms = needed_ms(flops, byte_count, work)
    lower_bound_ms = math.nan if math.isnan(compute_ms + memory_ms) else max(compute_ms, memory_ms)
    return {
        "tflops": flops / (latency_ms * 1e9),
        "gbs": byte_count / (latency_ms * 1e6),
        "lower_bound_ms": lower_bound_ms,
        "bound": "" if math.isnan(lower_bound_ms) else "memory" if memory_ms >= compute_ms else "compute",
        "lower_bound_share": lower_bound_ms / latency_ms,
        "copy_share": memory_ms / latency_ms,
    }
