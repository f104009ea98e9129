"""Samples get the right flags: unsteady, few samples. Noise rarely counts as a drift from first to last samples."""

import random
from itertools import repeat

import pytest

from harness.quality import case_flags, ends_apart
from harness.schema.case import Case
from harness.schema.record import Record


@pytest.mark.parametrize(
    ("samples", "apart"),
    [
        ([1.0] * 6 + [1.1] * 6, 1 - 1 / 1.1),
        ([1.1] * 5 + [1.4] + [1.0] * 6, 0.1),
        ([1.0] * 5 + [1.1] * 6, 0.0),  # eleven are too few
        ([1.0] * 5 + [1.2] * 2 + [1.1] * 5, 0.0),  # the ranges of the first and the last six overlap
        ([2.07] * 10 + [1.86] * 44, 2.07 / 1.86 - 1),  # the middle half of the first 13 is higher
        ([1.0] * 9 + [1.2] + [1.0] * 20 + [1.1] * 10, 1 - 1 / 1.1),  # of ten samples, the middle half
        ([1.0] * 100, 0.0),
        ([1.0] * 50 + [0.0] * 50, 0.0),
    ],
)
def test_first_and_last_samples_are_compared(samples, apart):
    assert ends_apart(samples) == pytest.approx(apart)


@pytest.mark.parametrize(("count", "most"), [(12, 0.01), (20, 0.01), (39, 0.01), (40, 0.03), (100, 0.01)])
def test_noise_is_seldom_taken_for_a_change(count, most):
    rng = random.Random(count)
    found = [ends_apart([rng.gauss(1, 0.05) for _ in repeat(None, count)]) > 0.05 for _ in range(1_000)]
    assert sum(found) <= most * len(found)


@pytest.mark.parametrize(
    ("processes", "flags"),
    [
        ([[3.0] * 8 + [9.0], [3.31] * 9], ()),
        ([[3.0] * 9, [3.33] * 9], ("unsteady",)),
        ([[8.0, 10.0, 12.0] * 3, [10.0] * 9, [10.0] * 9], ()),
        ([[8.0, 10.0, 12.0] * 3, [8.0, 10.0, 12.0] * 3, [10.0] * 9], ("unsteady",)),
        ([[3.0, 3.4] * 3], ("unsteady",)),  # six samples have quartiles
        ([[3.0], [3.0] * 6, [3.0] * 6], ()),
        ([[3.0], [5.0], [4.0], [9.0], [4.0], [5.0]], ("few samples",)),
    ],
)
def test_processes_of_a_case(processes, flags):
    case = Case("a", "b", "c", "forward", 1, 8)
    records = [Record(case, "ok", samples_ms=each, throttled=[False] * len(each)) for each in processes]
    assert case_flags(records) == flags
