"""The README of the neighbours study has the ratios that its records give."""

import re
from pathlib import Path

from tests.bench.neighbours import CASES, SETTINGS, summary

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_has_the_ratios_of_the_study():
    lines = summary(ROOT / "reports" / "studies" / "neighbours-h200")
    assert len(lines) == 1 + len(CASES) * (len(SETTINGS) - 1)
    readme = (ROOT / "reports" / "studies" / "README.md").read_text()
    for line in lines[1:]:
        name = re.split(r"  +", line)[0]
        row = next(row for row in readme.splitlines() if row.startswith(f"| {name} "))
        assert re.sub(r" +", " ", line.rsplit("x ", 1)[1]) in row
