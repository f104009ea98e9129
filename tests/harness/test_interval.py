import random
from statistics import median

import pytest
from scipy.stats import binom

from harness.interval import median_interval


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_samples_give_their_extremes(count: int) -> None:
    samples = [float(i) for i in range(count)]
    assert median_interval(samples) == (median(samples), 0.0, count - 1.0)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("count", [6, 7, 20, 101, 1000, 3000])
def test_ranks_are_the_narrowest_that_reach_the_confidence(count: int, confidence: float) -> None:
    _, low, high = median_interval(list(range(count)), confidence)
    rank = int(low) + 1
    assert high == count - rank
    reached = 1 - 2 * binom.cdf(rank - 1, count, 0.5)
    narrower = 1 - 2 * binom.cdf(rank, count, 0.5)
    assert reached >= confidence or rank == 1
    assert narrower < confidence


def test_covers_the_true_median() -> None:
    generator = random.Random(0)
    runs = 400
    held = 0
    for _ in range(runs):
        _, low, high = median_interval([generator.expovariate(1.0) for _ in range(25)])
        held += low <= 0.6931 <= high
    assert held / runs >= 0.93


def test_order_does_not_matter() -> None:
    samples = [5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 7.0]
    assert median_interval(samples) == median_interval(sorted(samples))
    assert samples[0] == 5.0


def test_refuses_what_has_no_median() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match=r"confidence 1\.0"):
        median_interval([1.0], 1.0)
