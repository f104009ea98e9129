"""A GPU's measured peak is at least its sustained rate."""

import pytest
import torch

from bench.systems.ceilings import PRODUCT, ceilings_of
from harness.measure.cuda_clock import CudaEventClock
from harness.measure.timer import measure
from harness.schema.policy import Policy


def test_a_cpu_has_none() -> None:
    assert ceilings_of("cpu") == {}


@pytest.mark.gpu
def test_products_one_after_another_are_below_the_ceiling() -> None:
    rows, inner, columns = PRODUCT
    a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((rows, inner), (inner, columns)))
    ceiling = ceilings_of("cuda")["product_tflops"]  # first, as in a run: an earlier load lowers it
    assert ceiling is not None
    samples = measure(lambda: a @ b, CudaEventClock(), Policy(budget_s=0.5)).samples_ms
    assert 2 * rows * inner * columns / min(samples) / 1e9 <= 1.02 * ceiling
