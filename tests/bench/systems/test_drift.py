"""Next-token probabilities in float32 stay near float64's and drift if the state is rounded."""

import math
import weakref
from dataclasses import replace

import pytest
import torch

from bench.systems.ttt import drift as drift_module
from bench.systems.ttt.drift import drift, exact_run
from bench.systems.ttt.kernels import TTTKernels
from bench.systems.ttt.model import TTTTorch
from harness.schema.case import Case

pytestmark = pytest.mark.usefixtures("one_thread")


def case(system, tokens=20):
    options = (("compare", "float64"),)
    return Case(system, "torch", "tiny", "generate", 2, tokens, "float32", "float32", options=options)


def models(adapter, system):
    small = case(system)
    adapter.build(small)
    model = adapter._model(small)
    return model, adapter.reference(model, torch.float64)


@pytest.mark.parametrize("system", ["ttt-linear", "ttt-mlp"])
def test_the_check_compares_and_the_metrics_hold_the_distances(system):
    workload = TTTTorch().build(case(system))
    checked = workload.check()
    assert checked.passed, checked.reason
    assert checked.checks[-1].limit == 1e-4
    names = [check.name for check in checked.checks]
    assert names[-1] == "total_variation_mean"
    assert {"logits_relative_error", "inner_loop_steps_relative_error", "head_rows_per_prompt"} <= set(names)
    assert workload.metrics["compared_tokens"] == 20
    assert 0 < workload.metrics["total_variation_mean"] <= workload.metrics["total_variation_max"] < 1e-6
    assert workload.metrics["argmax_disagreement"] == 0
    workload.run()


def test_a_rounded_state_drifts_and_drifts_further_with_more_tokens():
    model, reference = models(TTTTorch(), "ttt-linear")
    run = exact_run(reference, 2, 24)
    exact = drift(model, run)
    learn = model.operator.generate_step

    def rounded(tokens, outer, state):
        out = learn(tokens, outer, state)
        state.W.copy_(state.W.bfloat16())
        return out

    model.operator.generate_step = rounded
    found = drift(model, run)
    assert found["total_variation_mean"] > 100 * exact["total_variation_mean"]
    assert found["total_variation_max"] >= found["total_variation_last"] > found["total_variation_first"]


def test_the_state_outlives_the_capture_of_a_graph(monkeypatch):
    """A CUDA graph writes to the state's memory but does not keep the state alive, so `drift` must keep it alive."""
    model, reference = models(TTTTorch(), "ttt-linear")
    run, states, alive, make = exact_run(reference, 2, 4), [], [], model.init_generate_state

    def made(*given):
        state = make(*given)
        states.append(weakref.ref(state))
        return state

    def captured(step):
        step()
        return lambda: alive.append(states[-1]() is not None)

    monkeypatch.setattr(model, "init_generate_state", made)
    monkeypatch.setattr(drift_module, "graph_replay", captured)
    drift(model, run)
    assert alive == [True] * len(run.ids)


def test_the_exact_model_draws_the_same_tokens_each_time_and_not_one_alone():
    model, reference = models(TTTTorch(), "ttt-linear")
    first, second = (exact_run(reference, 2, 20) for _ in range(2))
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.probabilities, second.probabilities)
    assert len(first.ids.unique()) > 20
    assert drift(model, first) == drift(model, second)


def test_the_exact_run_is_shared_by_the_states_of_a_model_and_by_no_other(monkeypatch):
    runs = []
    monkeypatch.setattr(drift_module, "exact_run", lambda *given: runs.append(given[1:]) or exact_run(*given))
    adapter = TTTTorch()
    for each in (case("ttt-linear", 3), replace(case("ttt-linear", 3), state_dtype=""), case("ttt-linear", 4)):
        adapter.build(each).check()
    assert runs == [(2, 3), (2, 4)]


def test_a_model_of_nans_does_not_pass():
    adapter = TTTTorch()
    workload = adapter.build(case("ttt-linear", tokens=3))
    model = adapter._model(case("ttt-linear", tokens=3))
    step = model.generate_step
    model.generate_step = lambda ids, state: (step(ids, state)[0] * math.nan, state)
    assert not workload.check().passed


def test_a_kernels_state_precision_is_seen(triton_kernels):
    adapter, found = TTTKernels("linear"), []
    for dtype in ("float32", "bfloat16"):
        small = replace(case("ttt-linear", tokens=4), backend="triton-dual", batch=1, state_dtype=dtype)
        adapter.build(small)
        model = adapter._model(small)
        exact = exact_run(adapter.reference(model, torch.float64), small.batch, small.context)
        found.append(drift(model, exact)["total_variation_mean"])
    exact, rounded = found
    assert exact < 1e-6
    assert rounded > 10 * exact
