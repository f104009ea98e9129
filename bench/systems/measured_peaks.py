"""Peak copy bandwidth and GEMM rate of this GPU, measured in the worker's own process."""

import time
from functools import cache
from statistics import median

import torch

from harness.measure.cuda_clock import CudaEventClock
from harness.measure.timer import measure
from harness.schema.policy import Policy

COPY_BYTES = 1 << 30
GEMM = (32768, 2048, 8192)  # rows, inputs and outputs; 2,048 is the width of the 1.3B models
GEMMS, PAUSE_S = 100, 0.003  # a pause before each GEMM: back-to-back GEMMs can be power-capped


@cache
def peaks_of(device: str) -> dict[str, float | None]:
    """Return the GPU's measured peaks by name, measured once per process; {} for device "cpu".

    copy_gbs: bandwidth of a copy in 10^9 bytes per second, reads plus writes.
    product_tflops: 10^12 FLOPs per second of a GEMM with bfloat16 inputs and float32 sums.
    """
    if device == "cpu":
        return {}
    found: dict[str, float | None] = {"copy_gbs": _copy_gbs(), "product_tflops": _gemm_tflops()}
    torch.cuda.empty_cache()  # an engine that starts next needs the free memory
    return found


def _copy_gbs() -> float:
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    timing = measure(lambda: target.copy_(source), CudaEventClock(), Policy(budget_s=0.5), limited=False)
    return 2 * COPY_BYTES / median(timing.samples_ms) / 1e6


def _gemm_tflops() -> float:
    rows, inner, columns = GEMM
    x, weight = (torch.randn(size, inner, device="cuda", dtype=torch.bfloat16) for size in (rows, columns))
    clock = CudaEventClock()
    clock.prepare(lambda: x @ weight.t())
    return 2 * rows * inner * columns / min(_ms_after_pause(clock) for _ in range(GEMMS)) / 1e9


def _ms_after_pause(clock: CudaEventClock) -> float:
    time.sleep(PAUSE_S)
    return clock.sample()
