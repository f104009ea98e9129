"""The flash-linear-attention adapters call the package correctly; a small package stands in for it."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from bench.cost import model_work
from bench.systems import regressor
from bench.systems.fla import models as fla_models
from bench.systems.fla.models import RWKV7, GatedDeltaNet
from bench.systems.fla.regressors import FlaLayerAdapter
from harness.measure.measured_case import CaseRun
from harness.measure.system import Skip
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.work import EDGES, SCAN, Work

CASE = Case("gated-deltanet", "fla", "1.3b", "generate", 3, 16, dtype="float32", timing="graph")


class Cache:
    """A stand-in for fla's cache. A test can replace `stored` to make `conv_state` a tensor instead of a tuple."""

    stored = staticmethod(lambda last: (last,))

    def __init__(self):
        self.layers = []

    def reset(self):
        """Do nothing: before 0.5.1, fla's `reset` left the states in the cache."""

    def get(self, zero):
        if not self.layers:
            return zero, zero.clone()
        state, last = self.layers[0].state["recurrent_state"], self.layers[0].state["conv_state"]
        return state, last if isinstance(last, torch.Tensor) else last[0]

    def update(self, state, last):
        if not self.layers:
            self.layers.append(SimpleNamespace(state={}))
        self.layers[0].state |= {"recurrent_state": state, "conv_state": self.stored(last)}


class Config:
    initializer_range = 0.02

    def __init__(self, **values):
        values = {"num_hidden_layers": 1, "num_heads": 1, "head_dim": 2, "expand_v": 3} | values
        self.values = values
        vars(self).update(values)

    def to_dict(self):
        return self.values

    @classmethod
    def from_dict(cls, values):
        return cls(**values)


class GatedDeltaNetModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.lengths = config, []
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.lm_head.weight = self.embedding.weight
        self.zero = nn.Parameter(torch.zeros(config.hidden_size, config.hidden_size))

    def forward(self, ids, past_key_values, use_cache, logits_to_keep):
        self.lengths.append(ids.shape[1])
        state, last = past_key_values.get(self.zero.new_zeros(ids.shape[0], self.config.hidden_size))
        states = []
        for column in ids.unbind(1):
            state = 0.9 * state + self.embedding(column) + 0.5 * last + state @ self.zero
            last.copy_(self.embedding(column))
            states.append(state)
        past_key_values.update(state, last)
        return SimpleNamespace(logits=self.lm_head(torch.stack(states[-logits_to_keep:], dim=1)))


@pytest.fixture
def package(monkeypatch):
    modules = {
        "fla": {},
        "fla.models": {"GatedDeltaNetConfig": Config, "GatedDeltaNetForCausalLM": GatedDeltaNetModel},
        "fla.models.utils": {"Cache": Cache},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["fla"], "models", sys.modules["fla.models"], raising=False)
    monkeypatch.setattr(GatedDeltaNet, "shape", {"hidden_size": 6})
    monkeypatch.setattr(fla_models, "VOCABULARY", 40)


@pytest.mark.parametrize("adapter", [GatedDeltaNet, FlaLayerAdapter])
def test_a_broken_package_makes_its_systems_unavailable(tmp_path, monkeypatch, adapter):
    for name in [name for name in sys.modules if name.partition(".")[0] == "fla"]:
        monkeypatch.delitem(sys.modules, name)
    for user in (fla_models, regressor):
        monkeypatch.setattr(user, "no_gpu", lambda: "")
    monkeypatch.setitem(sys.modules, "fla", None)
    assert adapter().unavailable().startswith("fla cannot be imported: ")
    monkeypatch.delitem(sys.modules, "fla")
    (tmp_path / "fla.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert adapter().unavailable().startswith("fla cannot be imported: OSError: libcudart.so.12")


@torch.inference_mode()
def test_a_prompt_goes_in_pieces_along_its_length(package, monkeypatch):
    model = GatedDeltaNet().load(CASE)
    ids = torch.randint(0, 40, (3, 10))
    whole, _ = model.prefill(ids, model.init_state(3))
    monkeypatch.setattr(fla_models, "FORWARD_TOKENS", 12)
    pieces, _ = model.prefill(ids, model.init_state(3))
    assert model.inner.lengths == [10, 4, 4, 2]
    torch.testing.assert_close(pieces, whole)


@torch.inference_mode()
def test_the_reference_has_the_same_weights_and_stays_below_the_chunked_kernels(package):
    system = GatedDeltaNet()
    model = system.load(CASE)
    reference = system.reference(model, torch.float64)
    ids = torch.randint(0, 40, (2, 70))
    expected = reference.logits(ids, 40)
    assert max(reference.inner.lengths) < 64
    assert expected.dtype == torch.float64
    torch.testing.assert_close(model.logits(ids, 40).double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(expected[:, -1], reference.prefill(ids, reference.init_state(2))[0])
    torch.testing.assert_close(expected[:, 0], reference.prefill(ids[:, :31], reference.init_state(2))[0])


def test_weights_that_the_package_leaves_zero_are_drawn(package):
    weights = GatedDeltaNet().load(CASE).weights()
    assert weights["zero"].std() == pytest.approx(0.02, rel=0.5)


@pytest.mark.parametrize("stored", [lambda last: (last,), lambda last: last], ids=["several", "one"])
def test_every_call_of_generate_starts_from_the_same_state(package, monkeypatch, stored):
    monkeypatch.setattr(Cache, "stored", staticmethod(stored))
    workload = GatedDeltaNet().build(CASE)
    assert (workload.units, workload.tokens, workload.settings["prompt_tokens"]) == (16, 3, "1")
    for first, again in zip(workload.run(), workload.run(), strict=True):
        assert torch.equal(first, again)


def measured(case):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.model_facts.checks", lambda facts, case: [])  # the fake is smaller than the 1.3b size
        policy = Policy(min_samples=2, budget_s=0)
        return CaseRun(replace(case, timing="eager"), policy).record(GatedDeltaNet())


@pytest.mark.parametrize(("phase", "context"), [("forward", 40), ("forward", 100), ("generate", 16)])
def test_timed_logits_are_compared_with_the_recurrent_kernels_or_for_long_prompts_with_other_pieces(
    package, monkeypatch, phase, context
):
    monkeypatch.setattr(fla_models, "RECURRENT_CHECKED_TOKENS", 64)
    case = replace(CASE, phase=phase, context=context)
    record = measured(case)
    assert record.status == "ok", record.reason
    assert any(check["name"] == "timed_logits_relative_error" for check in record.check["checks"])
    assert ("same kernels" in record.check.get("unchecked", "")) is (context == 100)
    name = "prefill" if phase == "forward" else "generate_step"
    whole, batch = getattr(fla_models.FlaModel, name), CASE.batch

    def off(model, ids, state):
        logits, state = whole(model, ids, state)
        timed = len(ids) == batch and not model.piece  # the first check has fewer sequences; the reference has pieces
        return logits * (1.2 if timed else 1.0), state

    monkeypatch.setattr(fla_models.FlaModel, name, off)
    record = measured(case)
    assert (record.status, "timed_logits_relative_error" in record.reason) == ("incorrect", True)


def test_a_model_that_differs_from_its_reference_misses_its_check(package, monkeypatch):
    system = GatedDeltaNet()
    reference = system.reference

    def off(model, dtype):
        other = reference(model, dtype)
        other.inner.embedding.weight.data *= 1.1
        return other

    monkeypatch.setattr(system, "reference", off)
    workload = system.build(replace(CASE, phase="forward", timing="eager"))
    assert "logits_relative_error" in workload.check().reason


def test_other_sizes_are_skipped(package):
    with pytest.raises(Skip, match=r"supports only the size 1\.3b"):
        GatedDeltaNet().build(Case("gated-deltanet", "fla", "125m", "forward", 1, 16))


@pytest.mark.parametrize(
    ("adapter", "config", "state", "windows", "flops"),
    [
        (GatedDeltaNet, {"head_dim": 256, "num_heads": 6, "expand_v": 2.0}, 6 * 256 * 512, 4 * 6 * (2 * 256 + 512), 7),
        (RWKV7, {"head_dim": 64, "num_heads": 32, "value_dim": [2048] * 2}, 32 * 64 * 64, 0, 9),
    ],
)
def test_a_step_reads_and_writes_the_matrix_of_every_head(adapter, config, state, windows, flops):
    config = SimpleNamespace(hidden_size=2048, num_hidden_layers=2, vocab_size=32000, **config)
    shape = adapter().cost_config(SimpleNamespace(inner=SimpleNamespace(config=config)))
    case = replace(CASE, system="rwkv7", batch=8, dtype="bfloat16", state_dtype="float32")
    parts = model_work(shape, 10**9, case)
    assert parts[SCAN] == Work(flops * 2 * 8 * state, 4 * 2 * 2 * 8 * state)
    assert parts[EDGES].bytes == 2 * 2 * 8 * windows
    prompt = model_work(shape, 10**9, replace(case, phase="forward"))
    assert prompt[SCAN] == Work(parts[SCAN].flops * case.context, parts[SCAN].bytes // 2)


@pytest.mark.gpu
@pytest.mark.parametrize(("adapter", "system"), [(GatedDeltaNet, "gated-deltanet"), (RWKV7, "rwkv7")])
def test_the_counted_state_is_the_packages_state(adapter, system):
    pytest.importorskip("fla")
    adapter = adapter()
    model = adapter.load(replace(CASE, system=system, size="1.3b/2", dtype="bfloat16", timing="eager"))
    ids = torch.ones(CASE.batch, dtype=torch.long, device="cuda")
    with torch.inference_mode():
        state = model.generate_step(ids, model.init_state(CASE.batch))[1]
    shape = adapter.cost_config(model)
    states = [layer.state["recurrent_state"] for layer in state.layers]
    assert len(states) == shape.layers == 2
    assert all(each.numel() == CASE.batch * shape.state_elements and each.dtype == torch.float32 for each in states)
