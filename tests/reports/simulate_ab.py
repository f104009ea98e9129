"""Simulate how often `ttt-bench ab` raises false alarms and detects slowdowns, with the noise of real runs.

`python -m tests.reports.simulate_ab` prints the study; `reports/compare/README.md` shows a part of it.

The noise comes from 214 pairs of times: the same case in two runs of one H100, hours apart, with the same packages
(`reports/results/` and its history). Pairs more than 4% apart are left out: their code changed. In a run, all cases of
a system share a random shift, and each case has a shift of its own. Simulated pairs differ a bit more than real ones.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from reports.compare.comparison import STORED_BAR
from reports.compare.decision import decide

SYSTEM_SD = 0.0065  # standard deviation of the shift that all cases of a system in one process share
CASE_SD = 0.003  # standard deviation of a case's own shift, in the median of cases
CASE_SPREAD = 0.6  # standard deviation, between cases, of the logarithm of the own shift's size
TAILS = 5  # degrees of freedom of a case's own noise, a Student's t
RECORDED_QUANTILES = {0.5: 0.0070, 0.8: 0.0118, 0.9: 0.0174, 0.95: 0.0203, 0.99: 0.0260}  # of two runs' differences
SYSTEMS, CASES = 4, 10  # systems of a suite, cases of a system
ROUNDS = 6  # the default of `ttt-bench ab`

Suite = np.ndarray  # [system, case, round]: log(B's median / A's)


@dataclass(frozen=True)
class Study:
    """Results of a study. If no case was slowed, `found` is NaN, and same and undecided are shares of all cases."""

    false_alarms: float  # share of suites with a "faster" case, or a "slower" one that was not slowed
    found: float  # share of the slowed cases with outcome "slower"
    same: float  # share of the slowed cases with outcome "same"
    undecided: float  # share of the slowed cases with outcome "undecided"


@dataclass(frozen=True)
class Noise:
    """Noise of simulated measurements."""

    factor: float = 1.0  # on the recorded noise
    disturbed: float = 0.0  # share of processes that other programs slow down by 10%
    two_times: float = 0.0  # share of cases that take 5% longer, with probability 1/2 in each process

    def differences(self, random: np.random.Generator, rounds: int, systems: int, cases: int) -> Suite:
        shared = random.normal(0, SYSTEM_SD, (2, systems, 1, rounds))
        deviation = CASE_SD * np.exp(random.normal(0, CASE_SPREAD, (systems, cases, 1)))
        own = random.standard_t(TAILS, (2, systems, cases, rounds)) * np.sqrt((TAILS - 2) / TAILS) * deviation
        disturbance = np.log1p(0.1) * (random.random((2, systems, 1, rounds)) < self.disturbed)
        a, b = self.factor * (shared + own) + disturbance
        if self.two_times:
            some = np.arange(systems * cases).reshape(systems, cases, 1) < self.two_times * systems * cases
            b = b + some * np.log1p(0.05) * np.subtract(*random.integers(0, 2, (2, systems, cases, rounds)))
        return b - a


RECORDED = Noise()


def whole_system(suite: Suite) -> np.ndarray:
    return np.arange(suite.shape[0])[:, None] * np.ones(suite.shape[1]) == 0


def single_case(suite: Suite) -> np.ndarray:
    return np.arange(suite.shape[0] * suite.shape[1]).reshape(suite.shape[:2]) == 0


def study(
    seed: int,
    suites: int,
    rounds: int = ROUNDS,
    slowdown: float = 0.0,
    slowed: Callable[[Suite], np.ndarray] = whole_system,
    noise: Noise = RECORDED,
) -> Study:
    random = np.random.default_rng(seed)
    counts = np.zeros(4)
    for _ in range(suites):
        suite = noise.differences(random, rounds, SYSTEMS, CASES)
        mask = slowed(suite) if slowdown else np.zeros(suite.shape[:2], bool)
        suite[mask] += np.log1p(slowdown)
        outcomes = np.array([each.outcome for each in decide(suite.reshape(-1, rounds).tolist())]).reshape(mask.shape)
        rated = mask if slowdown else ~mask
        counts += (
            np.isin(outcomes[~mask], ["slower", "faster"]).any() or (outcomes[mask] == "faster").any(),
            (outcomes[mask] == "slower").mean() if mask.any() else np.nan,
            (outcomes[rated] == "same").mean(),
            (outcomes[rated] == "undecided").mean(),
        )
    return Study(*(counts / suites))


def two_runs(suites: int) -> Suite:
    """Simulate, `suites` times, two runs of the same packages; return the log ratios [suite, case] of their times."""
    random = np.random.default_rng(8)
    return np.array([RECORDED.differences(random, 1, SYSTEMS, CASES).ravel() for _ in range(suites)])


def stored_false_alarms(suites: int) -> float:
    return float((np.abs(two_runs(suites)).max(axis=1) > np.log1p(STORED_BAR)).mean())


def main(suites: int = 2000) -> None:
    apart = np.abs(two_runs(suites))
    print("| two runs of the same packages differ by | recorded | simulated |\n| --- | --- | --- |")
    for share, recorded in RECORDED_QUANTILES.items():
        print(f"| {share:.0%} of cases at most | {recorded:.2%} | {np.quantile(apart, share):.2%} |")
    print(f"\nTwo stored runs with a case beyond {STORED_BAR:.0%}: {stored_false_alarms(suites):.1%} of suites\n")
    print("| slowed cases | slowdown | rounds | suites with a false alarm | found | same | undecided |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    _print_row("none", study(1, suites))
    for slowdown in (0.03, 0.05):
        _print_row("one of four systems", study(2, suites // 4, slowdown=slowdown), slowdown=slowdown)
    _print_row("one of 40 cases", study(3, suites // 4, 3, 0.05, single_case), 3, 0.05)
    noisy = study(7, suites // 4, ROUNDS, 0.05, noise=Noise(2))
    _print_row("one of four systems, twice the noise", noisy, slowdown=0.05)
    for rounds in (3, ROUNDS):
        alternating = study(8, suites // 4, rounds, noise=Noise(two_times=0.5))
        _print_row("none; half of the cases alternate between two times, 5% apart", alternating, rounds)


def _print_row(slowed: str, result: Study, rounds: int = ROUNDS, slowdown: float = 0.0) -> None:
    shares = (result.false_alarms, result.found, result.same, result.undecided)
    shown = ["–" if np.isnan(value) else f"{value:.1%}" for value in shares]
    print(f"| {slowed} | {f'{slowdown:.0%}' if slowdown else '–'} | {rounds} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
