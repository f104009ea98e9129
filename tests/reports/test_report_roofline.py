"""A case's TFLOP/s, GB/s, roofline bound and shares of the measured peaks follow from its latency and metrics."""

import math
from dataclasses import replace

import pytest
import synthetic_records as synthetic

from harness.schema.case import Case
from reports.roofline import RATE_COLUMNS, roofline_columns

CASE = Case("ttt-linear", "thunderkittens", "1.3b", "forward", 16, 2048)


def explained(latency_ms=1.0, case=CASE, **metrics):
    return roofline_columns(case, metrics, latency_ms)


def test_a_memory_bound_kernel():
    # 1.5 GB at 3,000 GB/s are 0.5 ms; 60 GFLOP at 600 TFLOP/s 0.1 ms
    found = explained(2.0, **synthetic.work(1.5e9, 6e10))
    assert found["bound"] == "memory"
    assert [
        found[name] for name in ("lower_bound_ms", "lower_bound_share", "copy_share", "tflops", "gbs")
    ] == pytest.approx([0.5, 0.25, 0.25, 30.0, 750.0])


def test_a_compute_bound_kernel():
    found = explained(2.0, **synthetic.work(1.5e9, 6e11))
    assert found["bound"] == "compute"
    assert [found["lower_bound_ms"], found["lower_bound_share"], found["copy_share"]] == pytest.approx([1.0, 0.5, 0.25])


def test_rates_need_no_peaks_and_a_lower_bound_both():
    found = explained(bytes=3e9, flops=6e11)
    assert (found["gbs"], found["tflops"], found["bound"]) == (3000.0, 600.0, "")
    assert math.isnan(found["lower_bound_ms"])
    found = explained(bytes=3e9, flops=6e11, copy_gbs=3000.0)
    assert found["copy_share"] == pytest.approx(1.0)
    assert math.isnan(found["lower_bound_share"])


def test_a_case_without_a_latency_has_a_lower_bound():
    found = explained(math.nan, **synthetic.work(3e9, 6e10))
    assert found["lower_bound_ms"] == 1.0
    assert math.isnan(found["lower_bound_share"])


def test_a_part_of_a_layer_has_no_work():
    part = replace(CASE, options=(("part", "w"),))
    found = explained(case=part, **synthetic.work(3e9, 6e10))
    assert all(math.isnan(found[name]) for name in RATE_COLUMNS if name != "bound")


@pytest.mark.parametrize("metrics", [{}, {"bytes": None, "flops": None}, synthetic.work(3e9, 6e10, copy_gbs=0.0)])
def test_unknown_values_are_nan(metrics):
    found = explained(**metrics)
    assert set(found) == set(RATE_COLUMNS)
    assert math.isnan(found["lower_bound_ms"])
    assert found["bound"] == ""
