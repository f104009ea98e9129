"""An answer belongs to a question: what a worker says out of turn or in another shape costs its case, no other."""

from dataclasses import replace
from pathlib import Path

import pytest
from harness_helpers import case, launch, lines_of, measured, statuses, systems

from harness.workers import process
from harness.workers.process import Limits

SOON = Limits(case_s=4.0)
UNUSABLE = "the worker's answer is unusable: "
WRONG = {
    "twice": "the worker answered twice",
    "another-id": "the worker answered a question that it was not asked",
    "no-id": "the worker answered a question that it was not asked",
    "stale": "the worker answered a question that it was not asked",
    "nothing": "the worker answered a question that it was not asked",
    "another-case": UNUSABLE + "ValueError: it is of another case: fake/cpu tiny forward B=3",
    "long-calls": UNUSABLE + "ValueError: its samples add up to 500 s",
    "surrogate": "the worker's answer is not JSON",
    "deep": "the worker's answer is not JSON",
    "array-in-object": "the worker's answer is not JSON",
    "endless-number": "the worker's answer is not JSON",
    "nested": UNUSABLE + "RecordError: environment: is nested more than 16 levels deep",
    "environment-list": UNUSABLE + "RecordError: environment: Input should be an object",
    "environment-cpu": UNUSABLE + "RecordError: environment.cpu: Input should be an object",
    "environment-gpu": UNUSABLE + "RecordError: environment.gpu: Input should be an object",
    "no-record": UNUSABLE + "KeyError",
    "record-text": UNUSABLE + "RecordError: Input should be an object",
    "schema": UNUSABLE + "RecordError: schema: must be 2 or 3, not 1",
    "huge-number": UNUSABLE + "RecordError: samples_ms.0: must be 0 or a number",
    "nan": UNUSABLE + "RecordError: samples_ms.0: must be 0 or a number",
    "too-long-ago": UNUSABLE + "ValueError: its samples add up to 1e+06 s, more than the ",
    "unsampled": UNUSABLE + "ValueError: status 'ok' without samples",
}


def rude(**env: str) -> dict:
    return {("fake", "cpu"): replace(launch("x", **env), module="rude_worker")}


@pytest.mark.parametrize("do", WRONG)
def test_a_wrong_answer_costs_its_own_case_and_its_worker(tmp_path: Path, do: str) -> None:
    records = measured(tmp_path / "out", [case("well"), case(do), case("well", batch=9)], rude())
    assert statuses(records) == ["ok", "failed", "ok"]
    assert records[1].reason.startswith(WRONG[do])
    assert [r.samples_ms for r in records] == [[0.5], [], [0.5]]
    assert len(lines_of(tmp_path / "out")) == 3


def test_an_engine_claims_no_more_time_than_passed(tmp_path: Path) -> None:
    record = measured(tmp_path / "out", [case("too-long-ago", timing="engine")], rude())[0]
    assert (record.status, record.reason.startswith(WRONG["too-long-ago"])) == ("failed", True)


def test_an_array_is_no_answer(tmp_path: Path) -> None:
    """It may be what a container's client prints, so it is passed over; then there is none."""
    records = measured(tmp_path / "out", [case("list"), case("well", batch=9)], rude(), limits=SOON)
    assert statuses(records) == ["timeout", "ok"]


def test_control_characters_are_cleaned(tmp_path: Path) -> None:
    record = measured(tmp_path / "out", [case("nul")], rude())[0]
    assert record.environment["device"] == "a b [2J"


def test_a_word_after_the_answer_costs_the_worker_alone(tmp_path: Path) -> None:
    records = measured(tmp_path / "out", [case("late-word"), case("well", batch=9), case("well", batch=10)], rude())
    assert [r.status for r in records if r.case.option("do") == "well"] == ["ok", "ok"]
    assert records[0].reason in ("", WRONG["twice"])  # whichever came first, its end or the answer's reader


def test_an_endless_line_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OUTPUT_LIMIT", 2 << 20)
    records = measured(tmp_path / "out", [case("endless-line"), case("well")], rude())
    assert statuses(records) == ["failed", "ok"]
    assert records[0].reason == "the worker's answer is longer than 2 MB"


def test_a_worker_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    """A request larger than a pipe holds, to a worker that sleeps."""
    large = case("deaf", options={f"o{i}": "x" * 900 for i in range(99)})
    records = measured(tmp_path / "out", [large, case("well")], rude(), limits=SOON)
    assert statuses(records) == ["timeout", "ok"]


def test_a_child_that_a_case_forked_does_not_answer(tmp_path: Path) -> None:
    """It returns from the case as its parent does; its answer would be taken for that of the next case."""
    records = measured(tmp_path / "out", [case("fork"), *(case(batch=i) for i in range(3, 6))], systems())
    assert statuses(records) == ["ok"] * 4
    assert [r.case.batch for r in records] == [2, 3, 4, 5]
    assert len({r.settings["pid"] for r in records}) == 1


def test_a_case_that_prints_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "OUTPUT_LIMIT", 1 << 20)
    records = measured(tmp_path / "out", [case("chatter"), case("work")], systems(), limits=SOON)
    assert statuses(records) == ["timeout", "ok"]
