"""The README of the neighbours study has the ratios that its records give."""

from pathlib import Path
from statistics import median

import pytest

from harness.measure.interval import repeats_interval
from harness.schema.case import Case
from harness.schema.run import Run

STUDIES = Path(__file__).resolve().parents[2] / "reports" / "studies"
CASES = {
    "forward, bound by the host": Case("transformer", "torch", "125m", "forward", 1, 64),
    "forward, bound by the device": Case("transformer", "torch", "350m", "forward", 16, 2048),
    "generate, bound by the host": Case("transformer", "torch", "125m", "generate", 1, 64),
    "generate, bound by the device": Case("transformer", "torch", "350m", "generate", 64, 1024, timing="graph"),
}
ROUNDS = 4


def medians(setting, case):
    """Return the median time of a case in each round. Processes of one round are compared, so that drift cancels."""
    runs = [Run.open(STUDIES / "neighbours-h200" / f"{number}-{setting}").records() for number in range(ROUNDS)]
    return [median(record.samples_ms) for records in runs for record in records if record.case == case]


@pytest.mark.parametrize("name", CASES)
def test_the_readme_has_the_ratios_of_the_study(name):
    whole = medians("whole", CASES[name])
    lines = (STUDIES / "README.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {name} "))
    for setting in ("half", "beside"):
        ratios = [[some / alone] for some, alone in zip(medians(setting, CASES[name]), whole, strict=True)]
        middle, low, high = repeats_interval(ratios)
        assert f"| {middle:.4f} ({low:.4f} to {high:.4f}) |" in row
