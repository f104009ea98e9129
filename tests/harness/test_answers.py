"""After a worker's wrong answer, only that case has no result."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness_helpers import HERE, case, launch, lines_of, measured, statuses


@pytest.mark.parametrize(
    ("do", "error"),
    [("long-calls", "ValueError: the samples add up to 500 s, but the case took only "), ("no-record", "KeyError")],
)
def test_a_wrong_answer_costs_its_own_case_and_its_worker(tmp_path: Path, do: str, error: str) -> None:
    rude = {("fake", "cpu"): replace(launch("x"), command=[sys.executable, str(HERE / "rude_worker.py")])}
    records = measured(tmp_path / "out", [case("well"), case(do), case("well", batch=9)], rude)
    assert statuses(records) == ["ok", "failed", "ok"]
    assert records[1].reason.startswith(f"the worker's answer is unusable: {error}")
    assert [r.samples_ms for r in records] == [[0.5], [], [0.5]]
    assert len(lines_of(tmp_path / "out")) == 3
