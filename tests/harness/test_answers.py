"""A worker's wrong answer to one case loses that case only."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness_helpers import HERE, SOON, case, launch, lines_of, measured, statuses, systems

UNUSABLE = "the worker's answer is unusable: "
WRONG = {
    "another-case": UNUSABLE + "ValueError: it is of another case: fake/cpu tiny forward B=3",
    "long-calls": UNUSABLE + "ValueError: the samples add up to 500 s, but the case took only ",
    "deep": "the worker's answer is not JSON",
    "no-record": UNUSABLE + "KeyError",
    "record-text": UNUSABLE + "RecordError: Input should be an object",
    "nan": UNUSABLE + "RecordError: samples_ms.0: must be 0 or a number",
    "too-long-ago": UNUSABLE + "ValueError: the samples add up to 1e+06 s, but the case took only ",
    "unsampled": UNUSABLE + "ValueError: status 'ok' without samples",
}


def rude(**env: str) -> dict:
    return {("fake", "cpu"): replace(launch("x", **env), command=[sys.executable, str(HERE / "rude_worker.py")])}


@pytest.mark.parametrize("do", WRONG)
def test_a_wrong_answer_costs_its_own_case_and_its_worker(tmp_path: Path, do: str) -> None:
    records = measured(tmp_path / "out", [case("well"), case(do), case("well", batch=9)], rude())
    assert statuses(records) == ["ok", "failed", "ok"]
    assert records[1].reason.startswith(WRONG[do])
    assert [r.samples_ms for r in records] == [[0.5], [], [0.5]]
    assert len(lines_of(tmp_path / "out")) == 3


def test_an_array_is_ignored(tmp_path: Path) -> None:
    """It may be output of a container client."""
    records = measured(tmp_path / "out", [case("list"), case("well", batch=9)], rude(), **SOON)
    assert statuses(records) == ["timeout", "ok"]


def test_control_characters_are_cleaned(tmp_path: Path) -> None:
    record = measured(tmp_path / "out", [case("nul")], rude())[0]
    assert record.environment["device"] == "a b [2J"


def test_a_worker_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    large = case("deaf", options={f"o{i}": "x" * 900 for i in range(99)})
    records = measured(tmp_path / "out", [large, case("well")], rude(), **SOON)
    assert statuses(records) == ["timeout", "ok"]


def test_a_child_that_a_case_forked_does_not_answer(tmp_path: Path) -> None:
    records = measured(tmp_path / "out", [case("fork"), *(case(batch=i) for i in range(3, 6))], systems())
    assert statuses(records) == ["ok"] * 4
    assert [r.case.batch for r in records] == [2, 3, 4, 5]
    assert len({r.settings["pid"] for r in records}) == 1
