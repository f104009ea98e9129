"""Do the adapters keep the protocol, does a gate notice a wrong model, and does the README's example run?"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.models.operator import FORMS
from bench.selection import select
from bench.suites import cases, find_suite
from bench.systems import SYSTEMS, language_model
from bench.systems.flash_transformer import SdpaCudnn
from bench.systems.language_model import LanguageModel
from bench.systems.mamba_ssm import MambaSSM
from bench.systems.torch_mamba import TorchMamba
from bench.systems.torch_transformer import TorchTransformer
from bench.systems.ttt_kernels import LinearThunderKittens
from bench.systems.ttt_torch import TTTMLP, TTTLinear
from harness.case import Case
from harness.gate import relative_error
from harness.system import Skip, Workload
from harness.worker import load

README = Path(__file__).resolve().parents[2] / "README.md"


def case(system, phase="forward", **options):
    fields = {"suite": "quick", "backend": "torch", "size": "tiny", "batch": 2, "context": 32, "dtype": "float32"}
    return Case(system=system, phase=phase, state_dtype="float32", options=tuple(options.items()), **fields)


@pytest.mark.parametrize("spec", SYSTEMS, ids=lambda spec: spec.label)
def test_every_adapter_says_whether_it_can_run(spec):
    reason = load(spec.adapter).unavailable()
    assert "\n" not in reason
    if "cpu" in spec.devices and not torch.cuda.is_available():
        assert reason == ""


@pytest.mark.parametrize("adapter", [TTTLinear, TTTMLP, TorchTransformer])
@pytest.mark.parametrize("phase", ["forward", "generate", "request"])
def test_a_workload_runs_and_passes_its_gate(adapter, phase):
    system = getattr(adapter, "system", "transformer")
    workload = adapter().build(case(system, phase, **({"steps": 3} if phase == "request" else {})))
    verdict = workload.gate()
    assert verdict.passed, verdict.reason
    assert torch.isfinite(torch.as_tensor(workload.run()).float()).all()
    assert workload.metrics["parameters"] > 1e5


@pytest.mark.parametrize(
    ("adapter", "system", "read"),
    [(TTTLinear, "ttt-linear", "0"), (TTTMLP, "ttt-mlp", "0"), (TorchMamba, "mamba", "0"),
     (TorchTransformer, "transformer", None)],
)  # fmt: skip
def test_the_record_says_that_generate_read_no_prompt_unless_its_state_stands_at_the_context(adapter, system, read):
    assert adapter().build(case(system, "generate")).settings.get("prompt_tokens") == read
    assert "prompt_tokens" not in adapter().build(case(system, "forward")).settings


def test_adapters_whose_state_is_put_at_the_context_are_those_that_claim_no_prompt():
    models = [kind for kind in (type(load(spec.adapter)) for spec in SYSTEMS) if issubclass(kind, LanguageModel)]
    assert {LinearThunderKittens, MambaSSM, SdpaCudnn} <= set(models)
    for kind in models:
        assert (kind.place is not LanguageModel.place) is (kind.prompt_tokens is None), kind


@pytest.mark.parametrize(
    ("batch", "phase", "expected"), [(4, "forward", True), (8, "forward", False), (1, "generate", False)]
)
def test_a_prefill_of_few_tokens_on_a_gpu_is_launch_bound(monkeypatch, batch, phase, expected):
    launch_bound = replace(case("ttt-linear", phase), batch=batch, context=2048)
    monkeypatch.setattr(language_model, "device", lambda: "cuda")
    assert language_model.is_launch_bound(launch_bound) is expected
    monkeypatch.setattr(language_model, "device", lambda: "cpu")
    assert not language_model.is_launch_bound(launch_bound)


@pytest.mark.parametrize(
    ("adapter", "system", "replayed"), [(TorchTransformer, "transformer", True), (TTTLinear, "ttt-linear", False)]
)
def test_a_launch_bound_prefill_is_replayed_where_the_adapter_allows_and_the_record_says_which(
    monkeypatch, adapter, system, replayed
):
    asked = case(system, "forward")
    assert "launch" not in adapter().build(asked).settings
    monkeypatch.setattr(language_model, "is_launch_bound", lambda asked: True)
    workload = adapter().build(asked)
    assert workload.replayed is replayed
    assert ("replayed from a CUDA graph" in workload.settings["launch"]) is replayed


def test_the_gate_notices_a_step_that_is_off_by_a_thousandth():
    adapter = TTTLinear()
    workload = adapter.build(case("ttt-linear"))
    _, model = adapter._loaded
    step = model.generate_step
    model.generate_step = lambda ids, state: (step(ids, state)[0] * 1.001, state)
    assert not workload.gate().passed


@pytest.mark.parametrize("options", [{"form": "dual"}, {"form": "primal"}, {"part": "w"}, {"part": "z"}])
def test_a_layer_is_measured_whole_or_in_part(options):
    workload = TTTLinear().build(case("ttt-linear", scope="layer", **options))
    assert workload.gate().passed
    workload.run()
    assert ("flops" in workload.metrics) == ("part" not in options)  # what a part does is not counted


def test_each_form_of_a_layer_counts_its_own_work_and_both_move_the_same():
    found = {form: TTTLinear().build(case("ttt-linear", scope="layer", form=form)).metrics for form in FORMS}
    tokens, heads, dim = 2 * 32, 2, 64
    assert found["dual"]["flops"] == tokens * heads * (6 * dim**2 + 4 * 16 * dim)
    assert found["primal"]["flops"] == tokens * heads * 8 * dim**2
    assert found["dual"]["bytes"] == found["primal"]["bytes"] > 4 * tokens * heads * dim * 4


def test_the_primal_and_the_dual_layer_compute_the_same():
    torch.manual_seed(0)
    outputs = []
    for form in ("dual", "primal"):
        torch.manual_seed(0)
        outputs.append(TTTMLP().build(case("ttt-mlp", scope="layer", form=form)).run()[0])
    assert relative_error(*outputs) < 1e-5


@pytest.mark.parametrize("options", [{"mini_batch": 32}, {"form": "primal"}, {"part": "w"}])
def test_a_kernel_refuses_the_function_that_it_does_not_compute(options):
    with pytest.raises(Skip, match=next(iter(options))):
        LinearThunderKittens().build(case("ttt-linear", scope="layer", **options))


def test_the_readmes_adapter_is_complete():
    example = re.findall(r"```python\n(\"\"\"How is my RNN run.*?)```", README.read_text(), re.DOTALL)[0]
    assert len(example.splitlines()) <= 40
    names: dict = {}
    exec(compile(example, "README.md", "exec"), names)
    adapter = names["MyRNN"]()
    workload = adapter.build(case("my-rnn"))
    assert isinstance(workload, Workload)
    assert adapter.unavailable() == ""
    assert workload.gate().passed
    workload.run()
    with pytest.raises(names["Skip"]):
        adapter.build(case("my-rnn", "generate"))


def test_the_readme_names_every_command_that_it_shows():
    shown = set(re.findall(r"^ttt-bench (\w+)", README.read_text(), re.MULTILINE))
    from bench.cli import app

    assert shown <= {command.name or command.callback.__name__ for command in app.registered_commands}


def test_every_case_of_quick_names_an_adapter():
    known = {(spec.system, spec.backend) for spec in SYSTEMS}
    found = cases(find_suite("quick"), select(None, None, None, None, "cpu"), "cpu")
    assert {(c.system, c.backend) for c in found} <= known
