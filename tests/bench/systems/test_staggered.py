"""Sequences at different positions in their mini-batches: timed calls are checked, and each generate step is timed."""

from dataclasses import replace
from random import Random

import pytest
import torch

from bench.systems import phases, token_times
from bench.systems.ttt.model import TTTTorch
from harness.measure.measured_case import CaseRun
from harness.schema.case import Case
from harness.schema.policy import Policy

CASE = Case(
    "ttt-linear", "torch", "tiny", "generate", 8, 32, "float32", "float32", options=(("positions", "staggered"),)
)
COMMON = replace(CASE, options=(("positions", "common"),))
FEW = Policy(min_samples=2, budget_s=0)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", [CASE, COMMON, replace(CASE, system="ttt-mlp", batch=20)])
def test_single_steps_are_timed_and_the_calls_are_checked(case):
    record = CaseRun(case, FEW).record(TTTTorch())
    assert record.status == "ok", record.reason
    assert "unchecked" not in record.check
    assert 0 < record.metrics["itl_p50_ms"] <= record.metrics["itl_p99_ms"]
    assert record.metrics["itl_worst_over_mean"] >= 1


def test_a_case_without_the_option_has_no_times_of_steps():
    work = TTTTorch().build(replace(CASE, options=())).run.__self__
    assert work.measured(1) == {}


def test_positions_are_spread_evenly_and_stay_so():
    for batch, expected in ((8, range(0, 16, 2)), (32, sorted([*range(16)] * 2)), (3, (0, 5, 10))):
        work = TTTTorch().build(replace(CASE, batch=batch)).run.__self__
        for change in (lambda: None, work.run, work.restart):
            change()
            assert work.state.layers[1].inner.position.tolist() == list(expected)
    common = TTTTorch().build(COMMON).run.__self__
    assert not common.state.layers[1].inner.position.any()


def test_another_token_before_a_position_is_incorrect(monkeypatch):
    restart = phases.Generate.restart

    def other(work):
        work._before, own = (work._before + 1) % 512, work._before
        restart(work)
        work._before = own

    monkeypatch.setattr(phases.Generate, "restart", other)
    record = CaseRun(CASE, FEW).record(TTTTorch())
    assert record.status == "incorrect"


def test_copies_stand_where_their_source_stands(monkeypatch):
    """The check compares each copy with the sequence that it copies: both must have read the same number of tokens."""
    work = TTTTorch().build(replace(CASE, batch=64)).run.__self__

    rows = work.compared_rows(Random(0))
    assert [row // 4 for row in rows] == list(range(16))  # one of each position
    sources = work.copy_rows(Random(0), rows)
    assert sources == [rows[row // 4] for row in range(64)]
    assert torch.equal(work.ids, work.ids[sources])


def test_percentiles_of_the_inter_token_latency():
    found = token_times.percentiles([1.0] * 150 + [4.0] * 10)
    assert (found["itl_p50_ms"], found["itl_p99_ms"]) == (1.0, 4.0)
    assert found["itl_worst_over_mean"] == pytest.approx(4 / (190 / 160))
