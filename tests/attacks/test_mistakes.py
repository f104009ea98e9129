"""Each adapter with a mistake fails the expected check; an honest adapter passes."""

from dataclasses import replace
from typing import Any

import pytest

from harness.schema.case import Case
from tests.attacks.mistakes import HONEST_CASES, MISTAKES, POLICY, PROMPT, Honest, InputsChanged, record_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("adapter", "case", "check"),
    MISTAKES,
    ids=[f"{each.__name__} {case.system} {case.phase}" for each, case, _ in MISTAKES],
)
def test_a_mistake_is_caught_and_named(adapter: type[Any], case: Case, check: str) -> None:
    record = record_of(adapter, case)
    assert (record.status, record.samples_ms) == ("incorrect", [])
    assert f"{check} is" in record.reason


def test_verify_reports_changed_inputs() -> None:
    assert "inputs_changed_by_the_work is" in record_of(InputsChanged, PROMPT, mode="verify").reason


@pytest.mark.parametrize("case", HONEST_CASES, ids=["prompt", "one token", "generate"])
def test_honest_work_is_ok(case: Case) -> None:
    records = [record_of(Honest, case, replace(POLICY, budget_s=0.02)) for _ in range(3)]
    assert [(record.status, record.reason) for record in records] == [("ok", "")] * 3
    assert all(record.check and "unchecked" not in record.check for record in records)
