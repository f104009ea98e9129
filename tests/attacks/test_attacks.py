"""The small form of `python -m tests.attacks`: 25 kills and some thousand changed records."""

import subprocess
import sys
from pathlib import Path

from tests.attacks import fuzz
from tests.attacks.__main__ import Line, table
from tests.attacks.kills import attack

ROOT = Path(__file__).resolve().parent.parent.parent


def test_kills_of_each_kind_of_process_lose_double_and_leave_nothing() -> None:
    found = attack(25, seed=1)
    assert (found.lost, found.doubled, found.left, found.broken) == (0, 0, 0, [])
    assert found.hit.total() >= 25
    assert set(found.hit) == {"parent", "warden", "worker", "starting worker", "grandchild"}


def test_changed_records_are_a_sentence_or_a_record() -> None:
    assert fuzz.fuzz_records(600) >= 600


def test_changed_record_files_are_a_sentence_or_records() -> None:
    assert fuzz.fuzz_record_files(500) >= 500


def test_changed_runs_are_a_sentence_or_a_run() -> None:
    assert fuzz.fuzz_runs(200) >= 200


def test_the_table_says_what_failed() -> None:
    lines = [Line("mistakes", 13, 0), Line("kills: cases lost", 1000, 2, "999 of a parent")]
    assert table(lines).splitlines() == [
        "attack             count  failures",
        "mistakes              13         0",
        "kills: cases lost   1000         2  999 of a parent",
    ]


def test_the_command_starts() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.attacks", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "--kills" in done.stdout
