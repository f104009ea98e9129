"""Two comparisons measured on an H100: no false alarm, 5% found; the README's table is of their records."""

from pathlib import Path

import pytest

from harness.schema.run import Run
from reports.compare import comparison

STUDY = Path(__file__).resolve().parents[2] / "reports" / "studies" / "ab-h100"
README = STUDY.parents[1] / "compare" / "README.md"
NEW_SIDE = {"same": "the same", "slower": "5% more"}


def compared(study):
    return comparison.compare(*(Run.open(STUDY / study / side) for side in ("old", "new")))


@pytest.mark.parametrize("study", NEW_SIDE)
def test_the_readme_has_the_ratios_of_the_study(study):
    rows = [row for row in README.read_text().splitlines() if row.startswith(f"| {NEW_SIDE[study]} |")]
    found = compared(study).rows
    assert len(rows) == len(found) == 4
    for row in found:
        judged = row.judged
        wanted = f"| {judged.ratio:.3f} | {judged.low:.3f} to {judged.high:.3f} | {judged.verdict} |"
        assert any(wanted in line for line in rows)


def test_two_copies_of_a_commit_are_not_told_apart():
    assert {row.judged.verdict for row in compared("same").rows} <= {"same", "undecided"}


def test_five_percent_more_work_is_found_in_every_case():
    assert {row.judged.verdict for row in compared("slower").rows} == {"slower"}
