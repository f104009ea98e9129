"""The vLLM adapter serves TTT models in a fake vLLM: it writes model folders, checks tokens and averages steps."""

import sys
from dataclasses import replace
from pathlib import Path

import fake_vllm
import pytest
import torch

from bench import serving
from bench.models.case_model import register_checkpoint
from bench.models.checkpoint import save
from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.models.hugging_face import read_config
from bench.systems.vllm import system as vllm_system
from bench.systems.vllm.engine import Batch
from bench.systems.vllm.ttt import VllmTTT
from harness.measure.measured_case import CaseRun
from harness.measure.system import NeedsFreshProcess
from harness.schema.case import Case
from harness.schema.policy import Policy

CASE = Case("ttt-linear", "vllm", "tiny", "generate", 4, 48, "float32", "float32-planes", timing="engine")
FEW = Policy(budget_s=0)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("system", ["ttt-linear", "ttt-mlp"])
@pytest.mark.parametrize(("phase", "options"), [("forward", ()), ("generate", ()), ("request", (("steps", 3),))])
def test_the_engines_tokens_are_compared_with_our_model(llm, system, phase, options):
    llm.compute = True
    record = CaseRun(replace(CASE, system=system, phase=phase, options=options), FEW).record(VllmTTT())
    assert record.status == "ok", record.reason
    names = {check["name"] for check in record.check["checks"]}
    assert {"logits_relative_error", "head_rows_per_prompt", "timed_choice_below_best"} <= names
    names = ("attention", "forward_kernel", "cache_dtype")
    assert [record.settings[name] for name in names] == ["none", "reference", "float32-planes"]


def test_a_sample_is_the_mean_of_a_mini_batch_of_steps(llm):
    workload = VllmTTT().build(CASE)
    work = workload.run.__self__
    ends = [0.0]
    for step in range(35):
        ends.append(ends[-1] + (0.017 if step % 16 == 5 else 0.001))
    assert work.samples_of(Batch(0.0, [(end, 4) for end in ends])) == pytest.approx([2.0, 2.0])
    assert "mean of 16 steps" in work.timed
    assert workload.units == 16


def test_the_state_does_not_grow_with_the_context(llm):
    layer = 2 * (4 * 64**2 + 4 * 64 + 16 * 2 * 2 * 64) + 2 * 3 * 128 * 4
    for context in (48, 4096):
        workload = VllmTTT().build(replace(CASE, context=context))
        assert workload.metrics["state_bytes"] == 4 * 2 * layer
        assert workload.settings["prompt_tokens"] == str(min(context, vllm_system.GENERATE_PROMPT))


def test_vllm_gets_the_plug_in_from_a_source_tree(llm):
    from transformers import AutoConfig

    VllmTTT().build(CASE)
    serving.register()  # as vLLM does it if the plug-in is installed
    assert llm.registered == {"TTTForCausalLM": fake_vllm.FakeModel}
    assert sys.modules["vllm.model_executor.models.config"].MODELS_CONFIG_MAP.keys() == {"TTTForCausalLM"}
    assert AutoConfig.for_model("ttt").architectures == ["TTTForCausalLM"]


def test_the_folder_holds_the_cases_model(llm):
    system = VllmTTT()
    system.build(replace(CASE, system="ttt-mlp", options=(("backbone", "transformer"), ("mini_batch", 32))))
    folder = Path(llm.started[0].folder)
    assert read_config(folder) == model_config("ttt-mlp", "tiny", backbone="transformer", mini_batch=32)
    with pytest.raises(NeedsFreshProcess):
        system.build(replace(CASE, system="ttt-mlp", options=(("backbone", "transformer"),)))


def test_a_checkpoints_weights_are_those_of_the_engine(llm, tmp_path, monkeypatch):
    monkeypatch.setenv("TTT_BENCH_CHECKPOINTS", "{}")
    model = from_seed(model_config("ttt-linear", "tiny"), 5, "cpu")
    save(model, tmp_path)
    checkpoint = register_checkpoint(tmp_path)
    VllmTTT().build(replace(CASE, options=(("checkpoint", checkpoint.name),)))
    assert torch.equal(llm.started[0].model.inner.head, model.head)
