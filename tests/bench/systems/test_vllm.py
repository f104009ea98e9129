"""On a fake vLLM, the adapter times the right steps, checks timed outputs and refuses unfair settings."""

import json
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import fake_vllm
import pytest
import torch

from bench.systems import needs, token_times
from bench.systems.logits import choice_check
from bench.systems.vllm import engine as vllm_engine
from bench.systems.vllm import system as vllm_system
from bench.systems.vllm.engine import Batch
from bench.systems.vllm.mamba import VllmMamba
from bench.systems.vllm.system import GENERATE_PROMPT
from bench.systems.vllm.transformer import VllmTransformer
from harness.measure.measured_case import CaseRun
from harness.measure.system import Skip
from harness.measure.timer import take_engine_samples
from harness.schema.case import Case
from harness.schema.policy import Policy

CASE = Case("transformer", "vllm", "tiny", "generate", 4, 48, dtype="float32", timing="engine")
FEW = Policy(budget_s=0)


def at_times(*requests, **fields):
    received = [(at, [(str(name), 0)]) for name, times in enumerate(requests) for at in times]
    return Batch(1.0, received=received, **fields)


def test_a_step_is_steady_when_every_sequence_generates_in_it_and_in_the_one_before():
    ends = [(0.1, 0), (1.0, 2), (2.5, 3), (2.6, 3), (2.8, 3), (2.9, 2)]
    assert Batch(0.0, ends).steady_ms(3) == pytest.approx([100.0, 200.0])


def test_sequences_that_were_never_all_in_flight_are_an_error():
    with pytest.raises(RuntimeError, match="at most 3 of 4 sequences"):
        Batch(0.0, [(1.0, 2), (2.0, 3), (3.0, 3)]).steady_ms(4)


def test_a_prompt_takes_from_the_first_step_to_the_last_token():
    assert Batch(2.0, [(2.5, 0), (3.0, 1), (4.0, 1), (4.2, 0)]).total_ms() == pytest.approx(2000.0)


def test_generate_runs_as_many_sequences_as_the_cache_holds(llm):
    llm.blocks, case = 18, replace(CASE, options=(("block_size", 16),))  # 48 + 35 tokens need 6 blocks; one is spare
    workload = VllmTransformer().build(case)
    assert (workload.metrics["sequences_at_once"], workload.tokens) == (2, 2)
    assert len(take_engine_samples(workload.engine_samples(), FEW).samples_ms) >= vllm_system.STEADY_STEPS
    assert llm.started[0].count == 2
    two = VllmTransformer().build(replace(case, batch=2)).metrics
    assert (workload.metrics["flops"], workload.metrics["bytes"]) == (two["flops"], two["bytes"])


def test_generate_with_room_for_all(llm):
    workload = VllmTransformer().build(CASE)
    assert (workload.metrics["sequences_at_once"], workload.tokens) == (4, 4)
    batches = list(islice(workload.engine_samples(), 2))  # batch after batch, without end
    assert min(len(batch) for batch in batches) >= vllm_system.STEADY_STEPS
    assert workload.metrics["context_at_last_step"] > 48


def test_the_state_of_a_forward_counts_the_prompts_of_two_steps(llm):
    forward = replace(CASE, phase="forward", batch=64, context=1500)
    workload = VllmTransformer().build(forward)
    step_tokens = VllmTransformer.max_num_batched_tokens
    one = VllmTransformer().build(replace(forward, batch=1)).metrics["state_bytes"]
    assert workload.metrics["state_bytes"] == one * -(-2 * step_tokens // 1500)
    assert "sequences_at_once" not in workload.metrics


def test_timed_steps_are_centered_on_the_context(llm, monkeypatch):
    lengths, prompts = [], vllm_engine.Engine.prompts
    monkeypatch.setattr(
        vllm_engine.Engine, "prompts", lambda engine, *shape: lengths.append(shape[1]) or prompts(engine, *shape)
    )
    llm.blocks = 400
    workload = VllmTransformer().build(replace(CASE, context=256))
    next(iter(workload.engine_samples()))
    tokens = workload.metrics["context_at_last_step"] - lengths[-1]
    assert abs(lengths[-1] + tokens / 2 - 256) <= 1
    assert f"prompts of {lengths[-1]} tokens" in workload.settings["timed"]
    assert "prompt_tokens" not in workload.settings


def test_a_profile_has_only_steady_steps(llm):
    workload = VllmTransformer().build(CASE)
    client, seen = llm.started[0].llm_engine.engine_core, []

    @contextmanager
    def around():
        step, client.get_output = client.get_output, lambda: seen.append(len(llm.started[0].running)) or step()
        yield
        client.get_output = step

    assert workload.engine_batch(around()) == len(seen) == vllm_system.PROFILED_STEPS < vllm_system.STEADY_STEPS
    assert set(seen) == {4}


def test_a_profiler_sees_prompts_from_their_first_step_on(llm):
    workload = VllmTransformer().build(replace(CASE, phase="forward"))
    started, seen = llm.started[0], []
    client = started.llm_engine.engine_core

    @contextmanager
    def around():
        assert started.waiting  # they are enqueued
        step, client.get_output = client.get_output, lambda: seen.append(1) or step()
        yield
        assert not started.waiting + started.running
        client.get_output = step

    assert workload.engine_batch(around()) == 1
    assert seen


def test_outputs_are_processed_after_the_timed_steps(llm):
    workload, order = VllmTransformer().build(CASE), []
    engine = llm.started[0].llm_engine
    step, process = engine.engine_core.get_output, engine.output_processor.process_outputs
    engine.engine_core.get_output = lambda: order.append("step") or step()
    engine.output_processor.process_outputs = lambda outputs: order.append(len(outputs)) or process(outputs)
    assert order == ["step"] * len(workload.run().steps) + [4]


def test_too_few_steps_in_which_all_generate_are_no_profile(llm, monkeypatch):
    workload = VllmTransformer().build(CASE)
    monkeypatch.setattr(Batch, "steady_ms", lambda batch, sequences: [1.0] * 15)
    with pytest.raises(RuntimeError, match="only 15 steps; a profile needs 16"):
        workload.engine_batch(nullcontext())


def test_a_cache_that_holds_no_sequence_is_out_of_memory(llm):
    llm.blocks = 3
    with pytest.raises(MemoryError, match="3 blocks does not hold one sequence"):
        VllmTransformer().build(replace(CASE, options=(("block_size", 16),)))


@pytest.mark.parametrize(
    "words",
    [
        "No available memory for the cache blocks. Try increasing",
        "6.0 GiB KV cache is needed, which is larger than the available KV cache memory (1.0 GiB).",
        "Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization",
    ],
)
def test_an_engine_without_memory_for_its_cache_is_out_of_memory(llm, words):
    llm.fails_with = ValueError(words)
    with pytest.raises(MemoryError, match=words[:20]):
        VllmTransformer().build(CASE)


def test_another_error_of_the_engines_start_is_no_lack_of_memory(llm):
    llm.fails_with = ValueError("unknown architecture")
    with pytest.raises(ValueError, match="unknown architecture"):
        VllmTransformer().build(CASE)


def test_forward_times_whole_batches(llm):
    workload = VllmTransformer().build(replace(CASE, phase="forward", batch=3))
    assert workload.tokens == 3 * 48
    timing = take_engine_samples(workload.engine_samples(), Policy(min_samples=2, budget_s=0))
    assert (len(timing.samples_ms), timing.stop) == (2, "budget")
    assert llm.started[0].count == 6


def test_the_grouped_query_transformer_runs_its_own_model(llm):
    llm.compute = True
    case, system = replace(CASE, system="transformer-gqa"), VllmTransformer()
    record = CaseRun(case, FEW).record(system)
    assert record.status == "ok", record.reason
    config = json.loads((Path(llm.started[0].folder) / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]) == (2, 1, 458)
    large = replace(case, size="1.3b", context=2048, dtype="bfloat16")
    assert system._state_bytes(large) == 2 * 2 * 512 * 24 * 2048
    assert system._state_bytes(replace(large, phase="request")) == 2 * 2 * 512 * 24 * (2048 + 128)


@pytest.mark.parametrize(
    ("adapter", "phase", "options"),
    [
        (VllmTransformer, "forward", ()),
        (VllmTransformer, "generate", ()),
        (VllmTransformer, "request", (("steps", 3),)),
        (VllmMamba, "forward", ()),
    ],
)
def test_tokens_of_the_last_batch_are_compared_with_the_repositorys_model(llm, adapter, phase, options):
    llm.compute = True
    system = "mamba" if adapter is VllmMamba else "transformer"
    record = CaseRun(replace(CASE, system=system, phase=phase, options=options), FEW).record(adapter())
    assert record.status == "ok", record.reason
    assert "unchecked" not in record.check
    below = {check["name"]: check["value"] for check in record.check["checks"]}["timed_choice_below_best"]
    assert 0 <= below < 1e-4
    assert record.metrics["flops"] > 0
    model = llm.started[0].model
    assert "compute_logits" not in vars(model)  # the count of head rows ends before the timed batch
    assert model.architectures == [*llm.registered]


@pytest.mark.parametrize(("phase", "left"), [("forward", 0), ("generate", 0), ("generate", vllm_system.STEPS - 1)])
def test_tokens_that_the_model_would_not_choose_are_incorrect(llm, monkeypatch, phase, left):
    llm.compute = True
    workload = VllmTransformer().build(replace(CASE, phase=phase))
    generate = fake_vllm.LLM._generate

    def another(engine, sequence):
        generate(engine, sequence)
        if len(sequence.output_token_ids) == sequence.params.max_tokens - left:
            sequence.output_token_ids[-1] = (sequence.output_token_ids[-1] + 1) % 512

    monkeypatch.setattr(fake_vllm.LLM, "_generate", another)
    workload.run()
    checked = workload.timed_check(Random(1))(None, 1)
    assert "timed_choice_below_best" in checked.reason


def test_missing_tokens_are_incorrect(llm):
    workload = VllmTransformer().build(CASE)
    batch = workload.run()
    del batch.received[-3:]
    assert "timed_tokens_missing" in workload.timed_check(Random(1))(None, 1).reason


def test_a_token_may_lie_below_the_best_within_rounding():
    logits = torch.randn(2, 3, 4000)
    best, second = logits.topk(2).indices.unbind(-1)
    assert choice_check("choice", logits, best, "bfloat16").passed
    logits.scatter_(-1, second[..., None], logits.amax(-1, keepdim=True) - 0.1)
    assert choice_check("choice", logits, second, "bfloat16").passed
    assert not choice_check("choice", logits, second, "float32").passed
    assert not choice_check("choice", logits, torch.zeros_like(best), "bfloat16").passed
    assert not choice_check("choice", logits * torch.nan, best, "bfloat16").passed


def test_requests_warm_up_with_short_answers_and_then_generate_their_steps_after_the_prompts_token(llm, monkeypatch):
    made, run = [], vllm_engine.Engine.run
    monkeypatch.setattr(vllm_engine.Engine, "run", lambda *what, **how: made.append(run(*what, **how)) or made[-1])
    workload = VllmTransformer().build(replace(CASE, phase="request", options=(("steps", 40),)))
    assert workload.tokens == 4 * (48 + 40)
    next(iter(workload.engine_samples()))
    assert [[len(tokens) for tokens, _ in batch.requests()] for batch in made] == [[32] * 4, [41] * 4]


def test_requests_are_in_the_order_of_the_prompts():
    received = [(1.0, [("10-a", 5), ("9-b", 6)]), (2.0, [("10-a", 7)])]
    assert Batch(0.0, received=received).requests() == [([6], [1.0]), ([5, 7], [1.0, 2.0])]


def test_an_engine_that_computes_something_else_misses_its_check(llm, monkeypatch):
    llm.compute = True
    compute = fake_vllm.FakeModel.compute_logits
    monkeypatch.setattr(fake_vllm.FakeModel, "compute_logits", lambda model, hidden: 1.2 * compute(model, hidden))
    checked = VllmTransformer().build(CASE).check()
    assert not checked.passed
    assert "logits_relative_error" in checked.reason


def test_the_reference_reads_the_tokens_that_the_engine_generated(llm, monkeypatch):
    llm.compute = True
    generate = llm._generate

    def another_token(engine, sequence):  # the best token is the same at each step
        generate(engine, sequence)
        sequence.output_token_ids[-1] = len(sequence.output_token_ids)

    monkeypatch.setattr(llm, "_generate", another_token)
    assert VllmTransformer().build(CASE).check().passed


def test_an_engine_with_a_prefix_cache_misses_its_check(llm):
    llm.compute = True
    workload = VllmTransformer().build(CASE)
    llm.started[0].llm_engine.vllm_config.cache_config.enable_prefix_caching = True
    assert "samples_that_leave_something" in workload.check().reason


def test_mamba_generates_after_short_prompts(llm):
    read = VllmMamba().prompt_tokens
    case = replace(CASE, system="mamba", context=32768)
    assert read(case) == GENERATE_PROMPT
    assert read(replace(case, context=16)) == 16
    assert read(replace(case, phase="forward")) == 32768
    assert VllmTransformer().build(replace(CASE, phase="forward")).settings["prompt_tokens"] == "48"


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("0.21.1", "vllm 0.21.1 is not supported: install vllm==0.33.* (supported: 0.22 to 0.33)"),
        ("0.22.0", ""),
        ("0.33.0", ""),
        ("0.100.0rc1", "vllm 0.100.0rc1 is not supported: install vllm==0.33.* (supported: 0.22 to 0.33)"),
    ],
)
def test_a_release_that_the_adapter_does_not_support_is_named(llm, monkeypatch, version, reason):
    monkeypatch.setattr(needs, "versions_of", lambda packages: {"vllm": version})
    monkeypatch.setattr(vllm_system, "no_gpu", lambda: "")
    assert VllmTransformer().unavailable() == reason


def test_kernels_for_another_torch_are_no_vllm_and_a_missing_part_skips_a_case(llm, monkeypatch):
    monkeypatch.setattr(vllm_system, "no_gpu", lambda: "")
    assert VllmTransformer().unavailable() == ""
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.llm_engine", None)
    assert VllmTransformer().unavailable() == ""  # not imported yet: it takes seconds
    with pytest.raises(Skip, match=r"vllm cannot be imported: .*llm_engine"):
        VllmTransformer().build(CASE)
    monkeypatch.setitem(sys.modules, "vllm.platforms.cuda", None)
    assert VllmTransformer().unavailable().startswith("vllm cannot be imported: ")


def test_the_times_of_requests_are_medians_over_a_batch_of_the_means_within_each_and_have_intervals():
    batch = at_times([1.5, 1.6, 1.7, 2.7], [2.0, 2.3, 2.6], [3.0, 3.2, 3.4])
    slower = at_times([3.0, 4.0, 5.0])
    found = token_times.metrics([each.requests_ms() for each in (batch, batch, slower)])
    assert found == {
        "time_to_first_token_ms": pytest.approx(1000.0),
        "time_to_first_token_ms_low": pytest.approx(1000.0),
        "time_to_first_token_ms_high": pytest.approx(2000.0),
        "inter_token_latency_ms": pytest.approx(300.0),
        "inter_token_latency_ms_low": pytest.approx(300.0),
        "inter_token_latency_ms_high": pytest.approx(1000.0),
    }


def test_a_prompt_too_long_for_the_reference_is_noted_as_not_checked(llm, monkeypatch):
    monkeypatch.setattr(vllm_system, "MODEL_LENGTH", 40)
    workload = VllmTransformer().build(replace(CASE, phase="forward"))
    assert "not checked" in workload.timed_check(Random(1))(None, 1).unchecked


def test_only_the_requests_that_were_samples_count(llm):
    work = VllmTransformer().build(replace(CASE, phase="request", options=(("steps", 4),))).run.__self__
    work._batches.extend(at_times([1.0 + first / 1e3, 2.0]) for first in (9.0, 1.0, 3.0))
    assert work.measured(2)["time_to_first_token_ms"] == pytest.approx(2.0)
