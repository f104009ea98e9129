"""Back-to-back GEMMs are not faster than the measured peak."""

import pytest
import torch

from bench.systems.measured_peaks import GEMM, peaks_of
from harness.measure.cuda_clock import CudaEventClock
from harness.measure.timer import measure
from harness.schema.policy import Policy


@pytest.mark.gpu
def test_gemms_one_after_another_are_below_the_peak() -> None:
    rows, inner, columns = GEMM
    a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((rows, inner), (inner, columns)))
    peak = peaks_of("cuda")["product_tflops"]  # first, as in a run: an earlier load lowers it
    samples = measure(lambda: a @ b, CudaEventClock(), Policy(budget_s=0.5)).samples_ms
    assert 2 * rows * inner * columns / min(samples) / 1e9 <= 1.02 * peak
