"""A TTT check compares each inner loop with a reference and leaves the model unchanged."""

import math
from dataclasses import replace

import pytest

from bench.models.operator import TorchOperator
from bench.systems.model_calls import model_of
from bench.systems.ttt.inner_loops import inner_loop_checks
from bench.systems.ttt.model import TTTTorch
from harness.schema.case import Case


def case(system, **options):
    fields = {"backend": "torch", "size": "tiny", "batch": 2, "context": 32, "dtype": "float32"}
    return Case(system=system, phase="forward", state_dtype="float32", options=tuple(options.items()), **fields)


class WrongOperator(TorchOperator):
    def __init__(self, learner, wrong, in_prefill):
        super().__init__(learner)
        self.wrong, self.in_prefill = wrong, in_prefill

    def forward(self, projections, outer, state, start=None):
        given = self._without_learning(projections) if self.in_prefill else projections
        out = super().forward(given, outer, state, start)
        return self._other(out, projections) if self.in_prefill else out

    def generate_step(self, projections, outer, state):
        return self._other(super().generate_step(self._without_learning(projections), outer, state), projections)

    def _without_learning(self, projections):
        return projections._replace(lr_logits=projections.lr_logits - 100) if self.wrong == "learns" else projections

    def _other(self, out, projections):
        return {"zeros": 0 * out, "queries": projections.q, "more": out + 0.1 * projections.q}.get(self.wrong, out)


@pytest.mark.parametrize("in_prefill", [True, False])
@pytest.mark.parametrize("wrong", ["zeros", "queries", "more", "learns"])
def test_the_check_notices_a_wrong_operator_in_a_model_whose_logits_hardly_show_it(wrong, in_prefill, monkeypatch):
    adapter, small = TTTTorch(), replace(case("ttt-linear"), dtype="bfloat16")
    model = model_of(small, operator=WrongOperator("linear", wrong, in_prefill))
    monkeypatch.setattr(adapter, "load", lambda case: model)
    missed = {check.name for check in adapter.build(small).check().checks if not check.passed}
    assert "inner_loop_steps_relative_error" in missed
    assert ("inner_loop_prefill_relative_error" in missed) is in_prefill


class ForgetfulOperator(TorchOperator):
    def generate_step(self, projections, outer, state):
        weights = [getattr(state, name).clone() for name in state._fields if name[0] in "Wb"]
        out = super().generate_step(projections, outer, state)
        for before, now in zip(weights, state, strict=False):
            now.copy_(before)
        return out


class BrokenInTheLastLayer(TorchOperator):
    calls = 0

    def forward(self, projections, outer, state, start=None):
        self.calls += 1
        out = super().forward(projections, outer, state, start)
        return out * math.nan if self.calls == 2 else out


@pytest.mark.parametrize("mini_batch", [8, 16, 32])
def test_the_steps_of_the_check_go_beyond_the_end_of_a_mini_batch(mini_batch):
    small = replace(case("ttt-linear", mini_batch=mini_batch), dtype="bfloat16")
    model = model_of(small, operator=ForgetfulOperator("linear"))
    prefill, steps = inner_loop_checks(model, small, 37)
    assert prefill.passed
    assert steps.value > 2 * steps.limit


def test_a_nan_in_one_layer_is_not_hidden_by_another():
    small = case("ttt-mlp")
    prefill, steps = inner_loop_checks(model_of(small, operator=BrokenInTheLastLayer("mlp")), small, 37)
    assert math.isnan(prefill.value)
    assert not prefill.passed
    assert steps.passed


def test_the_operator_is_not_recorded_after_the_check():
    adapter = TTTTorch()
    workload = adapter.build(case("ttt-linear"))
    model = adapter._current
    before = model.operator
    assert workload.check().passed
    assert model.operator is before
    broken = model_of(case("ttt-linear"), operator=TorchOperator("mlp"))
    before = broken.operator
    with pytest.raises(TypeError, match="b2"):
        inner_loop_checks(broken, case("ttt-linear"), 37)
    assert broken.operator is before
