"""The mamba-ssm adapter against a fake package: states, copied weights, kernel tuning, and checks of timed calls."""

import sys
from dataclasses import dataclass, field, replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from bench.models.config import MambaConfig, model_config
from bench.models.factory import from_seed
from bench.systems.mamba import ssm
from bench.systems.mamba.ssm import MambaSSM, MambaSSMModel, copy_weights
from harness.measure.correctness import Checks
from harness.measure.measured_case import CaseRun
from harness.schema.case import Case
from harness.schema.policy import Policy

CONFIG = MambaConfig(width=8, layers=2, vocabulary=32)


@dataclass
class InferenceParams:
    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    key_value_memory_dict: dict = field(default_factory=dict)


class MambaLMHeadModel(nn.Module):
    def __init__(self, config, device, dtype):
        super().__init__()
        self.layers, self.shapes = config.n_layer, []
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, device=device, dtype=dtype)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.lm_head.weight = self.embedding.weight
        self.A_log = nn.Parameter(torch.zeros(config.n_layer, 2 * config.d_model, 16))  # 16: the package's state size

    def allocate_inference_cache(self, batch, context, dtype):
        width = self.embedding.weight.shape[1]
        return {i: (torch.zeros(batch, 1, dtype=dtype), torch.zeros(batch, width, dtype=dtype)) for i in (0, 1)}

    def forward(self, ids, inference_params, num_last_tokens):
        self.shapes.append(tuple(ids.shape))
        x = self.embedding(ids)
        for index in range(self.layers):
            _, state = inference_params.key_value_memory_dict[index]
            if inference_params.seqlen_offset == 0:
                state.zero_()
            rows = []
            for token in x.unbind(1):
                state.copy_(0.5 * state + torch.tanh(token))
                rows.append(state.clone())
            x = torch.stack(rows, 1)
        return SimpleNamespace(logits=self.lm_head(x[:, -num_last_tokens:]))


@pytest.fixture
def package(monkeypatch):
    modules = {
        "mamba_ssm": {},
        "mamba_ssm.models": {},
        "mamba_ssm.utils": {},
        "mamba_ssm.models.config_mamba": {"MambaConfig": SimpleNamespace},
        "mamba_ssm.models.mixer_seq_simple": {"MambaLMHeadModel": MambaLMHeadModel},
        "mamba_ssm.utils.generation": {"InferenceParams": InferenceParams},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def model(package):
    torch.manual_seed(1)
    return MambaSSMModel(CONFIG, "Mamba1", "cpu", torch.float32)


@torch.inference_mode()
def test_prefill_in_pieces_leaves_every_sequence_its_own_state(model, monkeypatch):
    ids = torch.randint(0, 32, (5, 7))
    whole, state = model.prefill(ids, model.init_state(5))
    assert model.inner.shapes[-1] == (5, 7)
    monkeypatch.setattr(ssm, "FORWARD_TOKENS", 14)
    pieces, split = model.prefill(ids, model.init_state(5))
    assert model.inner.shapes[-3:] == [(2, 7), (2, 7), (1, 7)]
    torch.testing.assert_close(pieces, whole)
    torch.testing.assert_close(split.key_value_memory_dict, state.key_value_memory_dict)


@torch.inference_mode()
def test_a_reset_state_is_a_new_one_in_the_same_memory(model):
    ids = torch.randint(0, 32, (2, 5))
    _, state = model.prefill(ids, model.init_state(2))
    tensor = state.key_value_memory_dict[1][1]
    model.reset_state(state)
    assert not tensor.any()
    assert state.key_value_memory_dict[1][1] is tensor
    torch.testing.assert_close(model.prefill(ids, state)[0], model.prefill(ids, model.init_state(2))[0])


def test_the_packages_weights_become_those_of_transformers():
    config = model_config("mamba", "tiny")
    source, target = (from_seed(config, seed, "cpu", torch.float32) for seed in (1, 2))
    named = {name.replace("embeddings.", "embedding."): weight for name, weight in source.weights().items()}
    copy_weights(named, target.inner)
    ids = torch.randint(0, config.vocabulary, (1, 5))
    logits = [model.prefill(ids, model.init_state(1))[0] for model in (target, source)]
    torch.testing.assert_close(*logits)
    named.pop("backbone.norm_f.weight")
    with pytest.raises(KeyError, match=r"no weight for backbone\.norm_f\.weight"):
        copy_weights(named, target.inner)


def test_the_record_has_the_fallback_of_the_convolution(monkeypatch):
    case = Case("mamba", "mamba-ssm", "tiny", "forward", 1, 8)
    monkeypatch.setitem(sys.modules, "causal_conv1d", None)
    assert MambaSSM().settings(case)["causal_conv1d"].startswith("absent (causal_conv1d cannot be imported")
    monkeypatch.setitem(sys.modules, "causal_conv1d", ModuleType("causal_conv1d"))
    assert MambaSSM().settings(case)["causal_conv1d"] == "present"
    assert MambaSSM().settings(case)["reference_state"] == "bfloat16 in generate steps"


class Sequential:
    def __init__(self, model, dtype):
        self.model = MambaSSMModel(CONFIG, "Mamba1", "cpu", dtype)
        for name, weight in self.model.weights().items():
            weight.copy_(model.weights()[name])

    def init_state(self, batch, context):
        return self.model.init_state(batch)

    def prefill(self, ids, state):
        return self.logits(ids, 1)[:, 0], state

    def logits(self, ids, last):
        state = self.model.init_state(len(ids))
        return torch.stack([self.model.generate_step(column, state)[0] for column in ids.unbind(1)], 1)[:, -last:]


class Small(MambaSSM):
    def load(self, case):
        torch.manual_seed(1)
        return MambaSSMModel(CONFIG, "Mamba1", "cpu", torch.float32)

    def reference(self, model, dtype):
        return Sequential(model, dtype)


def test_compilation_leaves_no_state(package, monkeypatch):
    """Compiling kernels runs steps that spoil the state; the timed call must start from the case's state."""
    compiled = []

    def garble(run):
        compiled.append(run)
        with torch.inference_mode():
            for _, state in run.__self__.state.key_value_memory_dict.values():
                state.fill_(torch.nan)

    for name in ("prepare", "compile_ahead"):
        monkeypatch.setattr(f"bench.systems.tuned_model.{name}", garble)
    case, adapter = Case("mamba", "mamba-ssm", "tiny", "generate", 3, 24, dtype="float32"), Small()
    for checked in (None, Checks([])):
        adapter._checked = checked
        assert adapter.build(case).run()[0].isfinite().all()
    assert len(compiled) == 2


@pytest.fixture
def done(monkeypatch):
    calls = []
    for name in ("prepare", "compile_ahead"):
        monkeypatch.setattr(f"bench.systems.tuned_model.{name}", lambda run, name=name: [run(), calls.append(name)])
    return calls


def test_each_model_is_tuned_and_a_request_is_captured_after_that(package, done, monkeypatch):
    monkeypatch.setattr("bench.systems.phases.graph_replay", lambda step: done.append("captured") or step)
    request = Case("mamba", "mamba-ssm", "tiny", "request", 3, 24, dtype="float32", options=(("steps", 3),))
    stepped, adapter = [], Small()
    step = MambaSSMModel.generate_step
    monkeypatch.setattr(MambaSSMModel, "generate_step", lambda *given: stepped.append(given) or step(*given))
    adapter.build(request).capture()
    assert done == ["prepare", "captured", "captured"]  # the state's copy, a step
    assert len(stepped) == 1  # of 3: eager steps are slow
    adapter.build(replace(request, batch=2)).capture()
    assert done[3:] == ["compile_ahead", "captured", "captured"]
    adapter.build(replace(request, dtype="bfloat16")).capture()  # another model
    assert done[6:] == ["prepare", "captured", "captured"]


@pytest.mark.parametrize(("phase", "prompt"), [("forward", 24), ("generate", 0), ("request", 24)])
def test_the_reference_of_timed_steps_stores_its_state_in_the_models_dtype(package, phase, prompt):
    model = MambaSSMModel(CONFIG, "Mamba1", "cpu", torch.bfloat16)
    reference = Small().timed_check_reference(model, torch.float32, Case("mamba", "mamba-ssm", "tiny", phase, 3, 24))
    assert (reference.stored, reference.prompt) == (torch.bfloat16, prompt)


@pytest.mark.parametrize(("phase", "options"), [("forward", ()), ("generate", ()), ("request", (("steps", 3),))])
def test_the_timed_call_starts_from_the_state_that_the_check_assumes(package, monkeypatch, phase, options):
    monkeypatch.setattr("bench.model_facts.checks", lambda facts, case: [])
    case = Case("mamba", "mamba-ssm", "tiny", phase, 3, 24, dtype="float32", options=options)
    record = CaseRun(case, Policy(min_samples=3, budget_s=0)).record(Small())
    assert record.status == "ok", record.reason
    assert any(check["name"] == "timed_logits_relative_error" for check in record.check["checks"])


def test_generate_is_tuned_anew_for_other_phases_and_many_more_sequences_but_not_for_the_context(package, done):
    forward = Case("mamba", "mamba-ssm", "tiny", "forward", 1, 4, dtype="float32")
    adapter = Small()
    cases = [forward, *(replace(forward, phase="generate", batch=b, context=c) for b, c in ((4, 4), (4, 64), (16, 4)))]
    tunings = {adapter.build(each).settings["tuned"] for each in cases}
    assert done == ["prepare", "prepare", "compile_ahead", "prepare"]
    assert len(tunings) == 3
