"""Requests arrive at a fake vLLM over time, equally for all systems; their TTFT, ITL and goodput are right."""

import math
from dataclasses import replace

import pytest

from bench.systems import token_times
from bench.systems.vllm.engine import Batch
from bench.systems.vllm.transformer import VllmTransformer
from harness.measure.measured_case import CaseRun
from harness.schema.case import Case
from harness.schema.policy import Policy

OPTIONS = (("rate", 200), ("steps", 6))
CASE = Case("transformer", "vllm", "tiny", "request", 9, 40, dtype="float32", timing="engine", options=OPTIONS)
FEW = Policy(min_samples=1, budget_s=0)


def work_of(case):
    return VllmTransformer().build(case).run.__self__


def test_requests_of_mixed_lengths_are_measured_and_checked(llm, monkeypatch):
    monkeypatch.setattr(token_times, "TTFT_LIMIT_MS", math.inf)
    monkeypatch.setattr(token_times, "ITL_LIMIT_MS", math.inf)
    llm.compute = True
    record = CaseRun(CASE, FEW).record(VllmTransformer())
    assert record.status == "ok", record.reason
    assert "timed_choice_below_best" in {check["name"] for check in record.check["checks"]}
    assert 0 < record.metrics["time_to_first_token_ms"] <= record.metrics["ttft_p99_ms"]
    assert 0 < record.metrics["itl_p50_ms"] <= record.metrics["itl_p99_ms"]
    assert record.metrics["goodput"] == pytest.approx(9e3 / record.samples_ms[0])


def test_every_system_gets_the_same_arrivals_and_lengths_around_the_cases(llm):
    work, other = work_of(CASE), work_of(replace(CASE, system="transformer-gqa"))
    assert (work.due, [*map(len, work.prompts())], work.answers()) == (
        other.due,
        [*map(len, other.prompts())],
        other.answers(),
    )
    lengths = [len(prompt) for prompt in work.prompts()]
    assert sum(lengths) == 9 * 40
    assert sum(work.answers()) == 9 * (6 + 1)
    assert len(set(lengths)) > 4
    assert all(20 <= length <= 60 for length in lengths)
    assert (work.due[0], work.due[-1]) == (0, pytest.approx(8 / 200))  # the rate is exact
    assert work.due == sorted(work.due)
    slower = work_of(replace(CASE, options=(("rate", 20), ("steps", 6))))
    assert slower.due == pytest.approx([10 * seconds for seconds in work.due])


def test_a_request_enters_the_engine_when_it_arrives(llm):
    work = work_of(CASE)
    batch = work.run_batch()
    assert batch.due == [batch.started + seconds for seconds in work.due]
    assert all(at[0] > due for (_, at), due in zip(batch.requests(), batch.due, strict=True))
    assert [len(at) for _, at in batch.requests()] == work.answers()


def test_ttft_counts_from_the_arrival():
    received = [(1.5, [("0", 7)]), (1.6, [("0", 7)]), (3.25, [("1", 7)]), (4.25, [("1", 7)])]
    batch = Batch(1.0, due=[1.0, 3.0], received=received)
    assert batch.requests_ms() == [(500.0, [pytest.approx(100.0)]), (250.0, [1000.0])]


def test_goodput_counts_requests_within_both_limits():
    quick, at_limits = (100.0, [10.0, 20.0]), (500.0, [50.0, 50.0])
    waited, slow = (501.0, [10.0]), (100.0, [20.0, 20.0, 111.0])
    found = token_times.arrival_metrics([quick, waited, slow, at_limits], 0.5)
    assert found["goodput"] == 4.0
    assert 100.0 < found["ttft_p99_ms"] <= 501.0
    assert found["itl_p50_ms"] == 20.0


def test_a_call_has_the_median_of_its_requests_mean_times():
    found = token_times.metrics([[(10.0, [1.0]), (20.0, [2.0, 2.0, 5.0]), (90.0, [30.0])]])
    assert (found["time_to_first_token_ms"], found["inter_token_latency_ms"]) == (20.0, 3.0)
    assert token_times.metrics([]) == {}


def test_one_request_of_one_step_has_percentiles():
    assert token_times.arrival_metrics([(7.0, [3.0])], 2.0) == {
        "itl_p50_ms": 3.0,
        "itl_p99_ms": 3.0,
        "itl_worst_over_mean": 1.0,
        "ttft_p99_ms": 7.0,
        "goodput": 0.5,
    }
