"""In stored `ttt-bench ab` runs, identical code is never slower or faster, and 5% more work is always slower."""

from collections import Counter
from pathlib import Path

from harness.schema.run import Run
from reports.compare import comparison

STUDY = Path(__file__).resolve().parents[2] / "reports" / "studies" / "ab-h100"


def compare(study):
    return comparison.compare(*(Run.open(STUDY / study / side) for side in ("old", "new")))


def test_two_copies_of_a_commit_do_not_differ():
    assert Counter(row.result.outcome for row in compare("same").rows) == {"same": 2, "undecided": 2}


def test_five_percent_more_work_is_found_in_every_case():
    assert Counter(row.result.outcome for row in compare("slower").rows) == {"slower": 4}
