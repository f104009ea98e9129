"""Simulate how often the 95% interval contains the true median when the stopping criterion ends sampling.

`python -m tests.harness.simulate_coverage [SERIES]` prints this share in two tables.
SERIES: simulated series of samples per table entry, by default 500.
Table 1 has a row per sample duration and a column per correlation of successive samples, as on power-capped GPUs.
In table 2, samples jump randomly between two levels. It has a row per standard deviation of the noise and a column per
distance between the levels, both relative to the median.
"""

import sys

import numpy as np

from harness.measure.interval import median_interval
from harness.measure.timer import MAX_SAMPLES, take_samples
from harness.schema.policy import Policy
from tests.harness.fake_clock import FakeClock

CORRELATIONS = (0.0, 0.5, 0.8, 0.95)
SAMPLES_MS = (1, 20, 150, 1300)
BETWEEN_MS = 5  # from the end of a sample to the next one
SPREAD = 0.01
NOISE, LEVELS = (0.01, 0.05), (0.0, 0.03, 0.06)  # relative noise; relative distance between two levels
POLICY = Policy(min_samples=6, budget_s=1.0)  # as in the published runs


def drawn(random: np.random.Generator, ms: float, correlation: float, spread: float, apart: float) -> list[float]:
    noise = random.standard_normal(MAX_SAMPLES + 20)
    noise[1:] *= np.sqrt(1 - correlation**2)
    for at in range(1, noise.size):
        noise[at] += correlation * noise[at - 1]
    level = random.choice([-apart / 2, apart / 2], noise.size) if apart else 0.0
    return (ms * (1 + level + spread * noise)).tolist()


def coverage(
    ms: float, correlation: float, series: int, spread: float = SPREAD, apart: float = 0.0, seed: int = 1
) -> float:
    random = np.random.default_rng(seed)
    samples = (drawn(random, ms, correlation, spread, apart) for _ in range(series))
    taken = (take_samples(FakeClock(each, between_ms=BETWEEN_MS), POLICY).samples_ms for each in samples)
    return sum(low <= ms <= high for _, low, high in map(median_interval, taken)) / series


def main(series: int = 500) -> None:
    print("| a sample takes | " + " | ".join(f"correlation {each}" for each in CORRELATIONS) + " |")
    print("| --- " * (1 + len(CORRELATIONS)) + "|")
    for ms in SAMPLES_MS:
        shares = (f"{coverage(ms, each, series):.0%}" for each in CORRELATIONS)
        print(f"| {ms} ms | {' | '.join(shares)} |", flush=True)
    print(
        "\n| noise | " + " | ".join(f"two levels {each:.0%} apart" if each else "one level" for each in LEVELS) + " |"
    )
    print("| --- " * (1 + len(LEVELS)) + "|")
    for spread in NOISE:
        shares = (f"{coverage(20, 0.0, series, spread, apart):.0%}" for apart in LEVELS)
        print(f"| {spread:.0%} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
