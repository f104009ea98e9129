"""Every cheat is caught and named; an honest adapter of the same shape never is."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.attacks.cheats import CHEATS, HONEST_CASES, POLICY, Cheat, Honest, record_of, uncaught


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("cheat", CHEATS, ids=[cheat.name for cheat in CHEATS])
def test_a_cheat_is_caught_and_named(cheat: Cheat) -> None:
    assert uncaught(cheat) == ""


@pytest.mark.parametrize("case", HONEST_CASES, ids=["prompt", "small prompt", "generate"])
def test_honest_work_is_ok_in_twenty_of_twenty_runs(case: object) -> None:
    brief = replace(POLICY, budget_s=0.05)
    records = [record_of(Honest, case, brief) for _ in range(20)]  # type: ignore[arg-type]
    assert [(record.status, record.reason) for record in records] == [("ok", "")] * 20
    assert all(record.gate and "unchecked" not in record.gate for record in records)
