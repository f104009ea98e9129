"""The layers of flash-linear-attention's delta rules are called correctly and checked against naive forms."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from bench.systems.fla import regressors
from bench.systems.fla.models import GatedDeltaNet
from bench.systems.fla.regressors import RULES, Regressor, naive
from harness.measure.measured_case import CaseRun
from harness.measure.system import Skip
from harness.schema.case import Case
from harness.schema.policy import Policy

CASE = Case("kda", "fla", "1.3b", "forward", 2, 70, dtype="float32", options=(("scope", "layer"),))


@pytest.fixture
def package(monkeypatch):
    """Replace fla by modules whose functions run `naive`; the returned dict's `error` is added to every output."""
    state = {"error": 0.0}
    monkeypatch.setattr(regressors, "prepare", lambda run: run())
    small = {name: replace(rule, heads=2, key_dim=8, value_dim=16) for name, rule in RULES.items()}
    monkeypatch.setattr(regressors, "RULES", small)
    for rule in small.values():
        name, _, function = rule.kernel.partition(":")

        def kernel(rule=rule, num_householder=1, output_final_state=False, **inputs):
            assert (num_householder, output_final_state) == (rule.householder, True)
            out, final = naive(rule, **inputs)
            return out + state["error"], final

        module = ModuleType(name)
        setattr(module, function, kernel)
        monkeypatch.setitem(sys.modules, name, module)
    return state


@pytest.mark.parametrize("system", RULES)
def test_a_layer_is_timed_and_checked(package, system):
    adapter = GatedDeltaNet() if system == "gated-deltanet" else Regressor()
    record = CaseRun(replace(CASE, system=system), Policy(budget_s=0)).record(adapter)
    assert record.status == "ok", record.reason
    package["error"] = 0.1
    record = CaseRun(replace(CASE, system=system), Policy(budget_s=0)).record(adapter)
    assert "output_relative_error" in record.reason


def test_a_delta_rule_by_hand():
    """K = V = H = 1: S = 1/2 * 0 + 1/2 * 2 * 3 = 3; S = 1/2 * 3 + 1 * (1 - 1.5) = 1."""
    rule = replace(RULES["gated-deltanet"], heads=1, key_dim=1, value_dim=1)
    q, k, v = (torch.tensor(each).view(1, 2, 1, 1) for each in ([1.0, 4.0], [2.0, 1.0], [3.0, 1.0]))
    beta, g = torch.tensor([0.5, 1.0]).view(1, 2, 1), torch.tensor([0.5, 0.5]).log().view(1, 2, 1)
    out, state = naive(rule, q, k, v, beta, g)
    assert out.flatten().tolist() == pytest.approx([3.0, 4.0])
    assert state.item() == pytest.approx(1.0)


def test_two_householder_steps_are_two_updates_after_one_decay():
    rule = replace(RULES["deltaproduct"], heads=1, key_dim=1, value_dim=1)
    k, v = (torch.tensor(each).view(1, 2, 1, 1) for each in ([2.0, 1.0], [3.0, 1.0]))
    out, _ = naive(rule, torch.ones(1, 1, 1, 1), k, v, torch.tensor([0.5, 0.5]).view(1, 2, 1), torch.zeros(1, 1, 1))
    assert out.item() == pytest.approx(2.0)  # S = 1/2 * 2 * 3 = 3, then 3 + 1/2 * (1 - 3)


@pytest.mark.parametrize(("system", "flops"), [("gated-deltanet", 7), ("kda", 7), ("deltaproduct", 11)])
def test_the_work_of_a_token_is_counted_by_the_state(package, system, flops):
    metrics = Regressor().build(replace(CASE, system=system)).metrics
    assert metrics["flops"] == flops * (2 * 8 * 16) * 2 * 70
    assert metrics["state_bytes"] == 4 * 2 * (2 * 8 * 16)


def test_another_size_is_skipped(package):
    with pytest.raises(Skip, match=r"kda supports only the size 1\.3b"):
        Regressor().build(replace(CASE, size="tiny"))
