import math
import random
from statistics import median

import pytest
from scipy.stats import binom

from harness.measure.interval import effective_sample_size, median_interval


def shuffled(count: int) -> list[int]:
    numbers = list(range(count))
    for seed in range(100):
        random.Random(seed).shuffle(numbers)
        if effective_sample_size(numbers) == count:
            return numbers
    raise AssertionError("no order of these is without a trend")


def autoregressive(count: int, correlation: float, rng: random.Random) -> list[float]:
    at, found = rng.gauss(0, 1), []
    for _ in range(count):
        found.append(at)
        at = correlation * at + math.sqrt(1 - correlation**2) * rng.gauss(0, 1)
    return found


def coverage(count: int, correlation: float, runs: int = 300) -> float:
    rng = random.Random(7)
    intervals = [median_interval(autoregressive(count, correlation, rng)) for _ in range(runs)]
    return sum(low <= 0 <= high for _, low, high in intervals) / runs


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_samples_give_their_extremes(count: int) -> None:
    samples = [float(i) for i in range(count)]
    assert median_interval(samples) == (median(samples), 0.0, count - 1.0)


@pytest.mark.parametrize("count", [6, 7, 20, 101, 1000, 3000])
def test_ranks_are_the_narrowest_that_reach_the_confidence(count: int) -> None:
    _, low, high = median_interval(shuffled(count))
    rank = int(low) + 1
    assert high == count - rank
    reached = 1 - 2 * binom.cdf(rank - 1, count, 0.5)
    narrower = 1 - 2 * binom.cdf(rank, count, 0.5)
    assert reached >= 0.95 or rank == 1
    assert narrower < 0.95 or 2 * rank + 1 > count


@pytest.mark.parametrize("count", [100, 300])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_intervals_of_correlated_samples_contain_the_median(count: int, correlation: float) -> None:
    assert coverage(count, correlation) >= 0.895


@pytest.mark.parametrize(
    ("count", "correlation", "least"),
    [(13, 0.5, 0.92), (13, 0.8, 0.8), (20, 0.8, 0.88), (40, 0.5, 0.95), (40, 0.8, 0.93)],
)
def test_intervals_of_few_correlated_samples_contain_the_median(count: int, correlation: float, least: float) -> None:
    assert coverage(count, correlation, 600) >= least


def test_a_drift_is_worth_hardly_a_sample() -> None:
    drift = [float(i) for i in range(100)]
    assert effective_sample_size(drift) < 6
    assert median_interval(drift) == (49.5, 2.0, 97.0)  # medians of the first and of the last five
    assert median_interval(drift[:29]) == (14.0, 0.0, 28.0)
    assert median_interval(drift[:30]) == (14.5, 2.0, 27.0)


def test_a_drift_ignores_an_outlier() -> None:
    drift = [1 + i * 1e-5 for i in range(1000)]
    drift[500] = 2.0
    middle, low, high = median_interval(drift)
    assert 1 <= low < middle == 1.005 < high < 1.01


@pytest.mark.parametrize(
    ("prime", "square", "linear", "effective"),
    [
        (43, 1, 0, 20),  # signs 1.26 below their limit of 1.3: 20 by ranks, where signs would say 6
        (41, 10, 1, 6),  # signs at 1.301: 6 by signs, 31 by ranks
        (103, 5, 2, 48),  # ranks 0.498 below their limit of 0.5, where they would say 39
        (61, 4, 2, 39),  # ranks at 0.504
    ],
)
def test_limits_of_chance_correlation(prime: int, square: int, linear: int, effective: int) -> None:
    assert effective_sample_size([(square * i * i + linear * i) % prime for i in range(48)]) == effective


def test_the_ends_of_fewer_samples_lie_at_their_quantile_among_all() -> None:
    # The effective size is 39. Rank 13 of 39 is the quantile 13 / 40, thus rank 13 * 49 // 40 = 15 of 48 samples.
    assert median_interval([float((4 * i * i + 2 * i) % 61) for i in range(48)]) == (27.0, 16.0, 35.0)
    # With an effective size of six, rank 1 * 49 // 7 = 7.
    assert median_interval([float((10 * i * i + i) % 41) for i in range(48)]) == (17.0, 2.0, 37.0)


def test_fewer_than_six_samples_have_no_correlation() -> None:
    assert effective_sample_size([float(i) for i in range(5)]) == 5
    assert effective_sample_size([float(i) for i in range(6)]) < 6
    assert effective_sample_size([5, 0, 10, 6, 7, 9, 8, 1, 4, 2, 3]) == 11  # below twelve, signs do not count
    assert effective_sample_size([4, 1, 10, 6, 8, 9, 5, 11, 7, 0, 3, 2]) == 2


def test_the_fewer_of_both_estimates_count() -> None:
    rng = random.Random(1)
    drift = [math.sin(i / 40) + rng.gauss(0, 1) for i in range(300)]
    drift[0] = 1e9  # more than their sum: signs are those about the median
    assert effective_sample_size(drift) < 60  # 28 by signs, 171 by ranks
    mild = autoregressive(24, 0.5, random.Random(1))
    assert effective_sample_size(mild) < 6  # 7 by signs, 3 by ranks


@pytest.mark.parametrize("samples", [[1.0] * 50, [1.0, 2.0] * 25, [1.0] * 49 + [9.0]])
def test_samples_without_drift_all_count(samples: list[float]) -> None:
    assert effective_sample_size(samples) == len(samples)


def test_both_estimates_are_corrected_for_their_own_mean() -> None:
    assert effective_sample_size([1.0, 2.0, 3.0, 4.0, 8.0, 7.0, 6.0, 5.0] * 3) == 4  # 7 without
    assert effective_sample_size([float(i % 10 < 5) * 10 + i * 7 % 5 for i in range(100)]) == 35  # 37 without
