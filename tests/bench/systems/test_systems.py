"""Adapters follow the protocol, their checks find a wrong model, and the example of CONTRIBUTING.md runs."""

import ast
import re
import time
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest
import torch

from bench.catalogue.systems import ADAPTERS
from bench.systems import phases, token_times
from bench.systems.mamba.pytorch import TorchMamba
from bench.systems.mamba.ssm import Mamba2SSM, MambaSSM
from bench.systems.model_calls import last_logits
from bench.systems.transformer.pytorch import TorchTransformer
from bench.systems.ttt import layer
from bench.systems.ttt.kernels import TTTKernels
from bench.systems.ttt.model import TTTTorch
from harness.measure.correctness import Checks
from harness.measure.inspection import tensors_of
from harness.measure.measured_case import CaseRun
from harness.measure.system import Skip, Workload
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.worker import load
from tk_kernels import FORMS

CONTRIBUTING = Path(__file__).resolve().parents[3] / "CONTRIBUTING.md"


def case(system, phase="forward", **options):
    fields = {"backend": "torch", "size": "tiny", "batch": 2, "context": 32, "dtype": "float32"}
    return Case(system=system, phase=phase, state_dtype="float32", options=tuple(options.items()), **fields)


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.label)
def test_every_adapter_reports_whether_it_can_run(adapter):
    reason = load(adapter.entry).unavailable()
    assert "\n" not in reason
    if "cpu" in adapter.devices and not torch.cuda.is_available():
        assert reason == ""


def test_a_missing_kernel_of_one_learner_leaves_the_other_its_backend(monkeypatch):
    for module in ("tk_kernels.ttt_linear.ops", "tk_kernels.ttt_linear.generate", "tk_kernels.ttt_mlp.generate"):
        monkeypatch.setattr(f"{module}.available", lambda: "")
    monkeypatch.setattr("tk_kernels.ttt_mlp.ops.available", lambda: "the kernel is not built")
    entries = {each.system: each.entry for each in ADAPTERS if each.backend == "thunderkittens"}
    reasons = {system: load(entry).unavailable() for system, entry in entries.items()}
    assert reasons == {"ttt-linear": "", "ttt-mlp": "the kernel is not built"}


POLICY = Policy(min_samples=2, budget_s=0)
MEASURED = [
    (TTTTorch, "ttt-linear", "forward", {}),
    (TTTTorch, "ttt-mlp", "generate", {}),
    (TTTTorch, "ttt-linear", "request", {"steps": 3}),
    (TorchTransformer, "transformer", "forward", {}),
    (TorchTransformer, "transformer", "generate", {}),
    (TorchTransformer, "transformer-gqa", "request", {"steps": 3}),
    (TorchMamba, "mamba", "forward", {}),
    (TorchMamba, "mamba", "generate", {}),
    (TTTTorch, "ttt-mlp", "forward", {"scope": "layer"}),
    (TTTTorch, "ttt-linear", "forward", {"scope": "layer", "form": "primal"}),
    (TTTTorch, "ttt-linear", "forward", {"scope": "layer", "part": "w"}),
    (TTTTorch, "ttt-linear", "forward", {"scope": "layer", "part": "z"}),
]


@pytest.mark.parametrize(("adapter", "system", "phase", "options"), MEASURED)
def test_timed_outputs_are_compared_with_the_reference(adapter, system, phase, options):
    record = CaseRun(case(system, phase, **options), POLICY).record(adapter())
    assert record.status == "ok", record.reason
    assert "unchecked" not in record.check
    assert any(check["name"].startswith("timed_") for check in record.check["checks"])
    assert (record.metrics.get("flops", 0) > 0) is ("part" not in options)  # the work of a part is not counted
    starts_empty = phase == "generate" and adapter is not TorchTransformer
    assert record.settings.get("prompt_tokens") == ("0" if starts_empty else None)


class SpoiledLater:
    packages = ()
    checks: ClassVar = {}  # cached checks: every test of a case has the same model

    def __init__(self, adapter, spoil, calls=2):
        self.adapter, self.spoil, self.left = adapter, spoil, calls

    def build(self, requested):
        workload = self.adapter.build(requested)

        def run():
            outputs = workload.run()
            self.left -= 1
            if self.left < 0:
                self.spoil(next(tensors_of(outputs)))
            return outputs

        def check():
            if requested not in self.checks:
                self.checks[requested] = workload.check()
            return self.checks[requested]

        return replace(workload, run=run, check=check)


def greedy_steps_of_argmin(model, ids, state, steps):
    read = []
    for _ in range(steps):
        read.append(ids)
        logits, _ = model.generate_step(ids, state)
        ids = logits.argmin(-1)
    return logits, torch.stack(read)


def worst_step(work):
    work._logits, _ = work.model.generate_step(work._next, work._generate_state)
    work._next.copy_(work._logits.argmin(-1))


def forgotten_prompt(work):
    work.model.reset_state(work._state)
    work.model.prefill(work.ids, work._state)
    work._next.zero_()


@pytest.mark.parametrize(("adapter", "system"), [(TTTTorch, "ttt-linear"), (TorchTransformer, "transformer")])
@pytest.mark.parametrize(
    ("phase", "owner", "name", "wrong"),
    [
        ("generate", phases, "greedy_steps", greedy_steps_of_argmin),
        ("request", phases.Request, "_one_step", worst_step),
        ("request", phases.Request, "_prefill", forgotten_prompt),
    ],
)
def test_tokens_that_the_model_would_not_choose_are_incorrect(adapter, system, phase, owner, name, wrong, monkeypatch):
    requested = case(system, phase, **({"steps": 5} if phase == "request" else {}))
    assert CaseRun(requested, POLICY).record(adapter()).status == "ok"
    monkeypatch.setattr(owner, name, wrong)
    record = CaseRun(requested, POLICY).record(adapter())
    assert (record.status, "timed_token_below_best" in record.reason) == ("incorrect", True)


def test_a_copy_that_generated_other_tokens_is_compared_after_these():
    adapter = TTTTorch()
    workload = adapter.build(replace(case("ttt-linear", "request", steps=5), batch=6))
    compare = workload.timed_check(Random(0))
    with torch.inference_mode():
        logits, read = (x.clone() for x in workload.run())
        copy = min({*range(6)} - {*workload.timed_check.__self__.compared_rows(Random(0))})
        read[2, copy] = (read[2, copy] + 1) % logits.shape[1]
        ids = torch.cat([workload.inputs["ids"].tensor[copy], read[:, copy]])
        logits[copy] = last_logits(adapter._current, ids[None])[0]
    errors = [each for each in compare((logits, read), 1).checks if each.name == "timed_logits_relative_error"]
    assert [each.passed for each in errors] == [True, True]


SPOILS = {
    "a hundredth more": lambda x: x.mul_(1.01),
    "zeros": lambda x: x.zero_(),
    "a NaN": lambda x: x[..., -1].fill_(torch.nan),
}


@pytest.mark.parametrize(
    ("adapter", "system", "phase", "options", "spoil"),
    [(*each, "a hundredth more") for each in (MEASURED[0], *MEASURED[8:])]
    + [(*MEASURED[0], spoil) for spoil in ("zeros", "a NaN")],
)  # tests/attacks has the other phases and models
def test_outputs_that_are_wrong_only_while_timed_are_incorrect(adapter, system, phase, options, spoil):
    spoiled = SpoiledLater(adapter(), torch.inference_mode()(SPOILS[spoil]))
    record = CaseRun(case(system, phase, **options), POLICY).record(spoiled)
    assert (record.status, record.samples_ms) == ("incorrect", [])
    assert "timed_" in record.reason or "outputs_" in record.reason


@pytest.mark.parametrize("phase", ["forward", "generate"])
@pytest.mark.parametrize(
    ("adapter", "system"),
    [(TTTTorch, "ttt-linear"), (TTTTorch, "ttt-mlp"), (TorchTransformer, "transformer"), (TorchMamba, "mamba")],
)
def test_bfloat16_stays_within_the_limits_of_its_rounding(adapter, system, phase):
    requested = replace(case(system, phase), dtype="bfloat16", batch=6, context=136)
    record = CaseRun(requested, POLICY, mode="verify").record(adapter())
    assert record.status == "ok", record.reason
    checks = {check["name"]: check for check in record.check["checks"]}
    for name in ("logits_relative_error", "timed_logits_relative_error"):
        assert checks[name]["limit"] < 0.02


def test_the_record_of_a_long_layer_has_the_number_of_compared_tokens(monkeypatch):
    monkeypatch.setattr(layer, "LAYER_TIMED_CHECK_TOKENS", 16)
    record = CaseRun(case("ttt-linear", scope="layer"), POLICY).record(TTTTorch())
    assert record.check["unchecked"] == "timed outputs: only the first 16 of 32 tokens compared"
    assert [c["name"] for c in record.check["checks"] if c["name"].startswith("timed")] == [
        "timed_output_relative_error"
    ]


def test_a_layer_longer_than_a_piece_is_compared_piece_by_piece(monkeypatch):
    monkeypatch.setattr(layer, "CHECKED_PIECE", 16)
    for options in ({}, {"part": "w"}, {"form": "primal"}):
        record = CaseRun(replace(case("ttt-mlp", scope="layer", **options), context=80), POLICY).record(TTTTorch())
        assert record.status == "ok", record.reason


def test_the_check_notices_a_step_that_is_off_by_a_thousandth():
    adapter = TTTTorch()
    workload = adapter.build(case("ttt-linear"))
    model = adapter._current
    step = model.generate_step
    model.generate_step = lambda ids, state: (step(ids, state)[0] * 1.001, state)
    assert not workload.check().passed


def test_each_form_of_a_layer_counts_its_own_work_and_both_move_the_same():
    found = {form: TTTTorch().build(case("ttt-linear", scope="layer", form=form)).metrics for form in FORMS}
    tokens, heads, dim = 2 * 32, 2, 64
    assert found["dual"]["flops"] == tokens * heads * (6 * dim**2 + 4 * 16 * dim)
    assert found["primal"]["flops"] == tokens * heads * 8 * dim**2
    assert found["dual"]["bytes"] == found["primal"]["bytes"] > 4 * tokens * heads * dim * 4


HOPPER = partial(TTTKernels, "linear", "dual", "thunderkittens")


@pytest.mark.parametrize(
    ("adapter", "requested", "words"),
    [
        (
            partial(TTTKernels, "linear"),
            case("ttt-linear", "generate", scope="layer", mini_batch=128),
            "does not support mini-batches of 128 tokens",
        ),
        (HOPPER, replace(case("ttt-linear"), size="760m"), "heads of 96 channels; ttt-linear/torch does"),
        (HOPPER, case("ttt-linear", scope="layer", mini_batch=8), "mini-batches of 8"),
        (HOPPER, case("ttt-linear", scope="layer", form="primal"), "form=primal"),
        (HOPPER, case("ttt-linear", scope="layer", part="w"), "part=w"),
        (MambaSSM, replace(case("mamba"), size="1.3b", context=1 << 21), "1048576 tokens, because"),
        (Mamba2SSM, replace(case("mamba2"), size="1.3b", context=1 << 18), "252288 tokens, because"),
        (TTTTorch, case("ttt-linear", "generate", scope="layer"), "of single layers only the forward"),
        (TTTTorch, replace(case("ttt-linear", "generate"), state_dtype="bfloat16"), "has states in float32"),
    ],
)
def test_an_unsupported_case_is_skipped_with_a_reason(adapter, requested, words):
    with pytest.raises(Skip, match=words):
        adapter().build(requested)


def test_the_adapter_of_the_documents_is_complete():
    example = re.findall(r"```python\n(\"\"\"Run my RNN.*?)```", CONTRIBUTING.read_text(), re.DOTALL)[0]
    assert len(example.splitlines()) <= 45
    functions = [node for node in ast.walk(ast.parse(example)) if isinstance(node, ast.FunctionDef)]
    for each in functions:  # mypy requires them in bench/systems
        assert each.returns, each.name
        assert all(argument.annotation for argument in each.args.args if argument.arg != "self"), each.name
    names: dict = {}
    exec(compile(example, "CONTRIBUTING.md", "exec"), names)
    adapter = names["MyRNN"]()
    workload = adapter.build(case("my-rnn"))
    assert isinstance(workload, Workload)
    assert adapter.unavailable() == ""
    compare = workload.timed_check(Random(0))
    out = workload.run()
    assert compare(out, 1).passed
    assert not compare(torch.zeros_like(out), 1).passed
    with pytest.raises(names["Skip"]):
        adapter.build(case("my-rnn", "generate"))


def test_the_backend_of_the_documents_passes_its_check_and_is_complete():
    example = re.findall(r"```python\n(\"\"\"Run a TTT model.*?)```", CONTRIBUTING.read_text(), re.DOTALL)[0]
    names: dict = {}
    exec(compile(example, "CONTRIBUTING.md", "exec"), names)
    for system, phase in (("ttt-linear", "forward"), ("ttt-mlp", "generate")):
        checked = names["TTTTokenByToken"]().build(case(system, phase)).check()
        assert checked.passed, checked.reason
        assert "inner_loop_prefill_relative_error" in {check.name for check in checked.checks}


def test_a_request_has_ttft_and_itl(monkeypatch):
    moments = [0.0, 0.5, 0.51, 0.52, 0.9, 0.91, 0.92]
    times = (7.0 * call + moment * (1 + call % 2) for call in count() for moment in moments)
    monkeypatch.setattr(token_times, "now", lambda: next(times))
    record = CaseRun(case("ttt-linear", "request", steps=5), POLICY).record(TTTTorch())
    assert record.status == "ok", record.reason
    assert 500 <= record.metrics["time_to_first_token_ms"] <= 1000
    assert 84 - 1e-6 <= record.metrics["inter_token_latency_ms"] <= 168 + 1e-6  # the mean: the third takes 380 ms
    head, inputs = 65 * 64 * 4 + 16 * 2 * 64 * 4, 2 * 128 * 3 * 4  # bytes of W, b and tokens; of two convolutions
    assert record.metrics["state_bytes"] == 2 * 2 * (2 * head + inputs)
    assert record.settings["prompt"] == "launched"


@pytest.mark.parametrize("where", ["here", pytest.param("on a GPU", marks=pytest.mark.gpu)])
def test_the_host_has_the_tokens_of_a_request(where):
    work = TTTTorch().build(case("ttt-linear", "request", steps=3)).run.__self__
    for _ in range(2):
        before = time.perf_counter()
        logits, read = work.run()
        assert work._on_host.tokens.tolist() == [*read.tolist(), logits.argmax(-1).tolist()]
        moments = [before, *work._moments[-1], time.perf_counter()]
        assert moments == sorted(moments)
        assert len(moments) == 2 + 1 + 4  # two around the call; its start, then the tokens of the prompt and of 3 steps


def test_only_the_calls_that_were_samples_count(monkeypatch):
    workload = TTTTorch().build(case("ttt-linear", "request", steps=2))
    for first in (9.0, 1.0, 3.0):
        times = iter([0.0, first, first + 0.1, first + 0.3])
        monkeypatch.setattr(token_times, "now", lambda times=times: next(times))
        workload.run()
    found = workload.measured(2)
    assert found["time_to_first_token_ms"] == pytest.approx(2000)
    assert [found[f"time_to_first_token_ms_{end}"] for end in ("low", "high")] == pytest.approx([1000, 3000])
    assert found["inter_token_latency_ms"] == pytest.approx(150)


def test_a_prompt_too_long_for_the_reference_is_noted_as_not_checked(monkeypatch):
    monkeypatch.setattr(phases, "LONGEST_CHECKED", 40)
    for phase, options in (("forward", {}), ("request", {"steps": 3})):
        record = CaseRun(replace(case("ttt-linear", phase, **options), context=41), POLICY).record(TTTTorch())
        assert record.status == "ok", record.reason
        assert "the reference runs at most 40" in record.check["unchecked"]


def test_each_model_that_is_loaded_has_a_check_of_its_own(monkeypatch):
    compared = []
    checked = Checks([])
    monkeypatch.setattr(TTTTorch, "_compare", lambda self, model, case: compared.append(case.dtype) or checked)
    adapter = TTTTorch()
    for dtype in ("float32", "float32", "bfloat16"):
        adapter.build(replace(case("ttt-linear"), dtype=dtype)).check()
    assert compared == ["float32", "bfloat16"]
