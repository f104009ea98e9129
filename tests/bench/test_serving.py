"""A step over any mix of requests returns the same logits as each request alone."""

import json
import re
import sys
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench.models import fused
from bench.models.checkpoint import copy_tensors
from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from bench.serving import register
from bench.serving.graphs import PromptGraphs
from bench.serving.pages import Generating, Layout, common_length, hidden
from bench.serving.refusals import unsupported_setting
from harness.measure.correctness import relative_error
from tests.interpreter import DEVICE, INTERPRETED
from tk_kernels.forward.operator import THUNDERKITTENS
from tk_kernels.packed import Packed
from tk_kernels.reference.token_rows import mapped

pytestmark = pytest.mark.usefixtures("one_thread")
# Relative error of the logits of a request in a mixed step against the model in float32, in PyTorch
LOGITS_ERROR = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


@pytest.mark.parametrize(
    ("lengths", "computed", "length"),
    [
        ([8192, 8192], [0, 32], 8192),
        ([8192, 8192], [0, 33], 0),
        ([8192, 8193], [0, 0], 0),
        ([4095, 4095], [0, 0], 0),
        ([4096], [16], 4096),
        ([256] * 64, [0] * 64, 256),
        ([256] * 65, [0] * 65, 0),
    ],
)
def test_up_to_64_long_prompts_of_one_length_from_a_mini_batch_are_a_batch(lengths, computed, length):
    assert common_length(lengths, computed, 16) == length


def test_the_tensors_of_a_page_begin_at_64_bytes_and_do_not_meet():
    config = replace(model_config("ttt-linear", "tiny"), width=20, heads=2)
    layout = Layout(config, KernelOperator("linear"), torch.bfloat16)
    offsets, shapes, _ = zip(*layout.spans, strict=True)
    assert shapes[2:5] == ((2, 16, 10), (2, 16, 10), (2, 10, 10))
    assert offsets == (0, 128, 256, 896, 1536, 1984, 2432)
    pages = torch.zeros(3, layout.page_bytes, dtype=torch.int8)
    views = []
    mapped(layout.state(pages), views.append)
    for number, view in enumerate(views):
        view[1] = number
    assert [float(view[1].float().mean()) for view in views] == list(range(7))
    assert not pages[0].any()


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize(("learner", "backbone"), [("linear", "mamba"), ("linear", "transformer"), ("mlp", "mamba")])
def test_mixed_requests_have_the_logits_of_single_ones(learner, backbone):
    # Tokens of each request in each step; a request of one token after its first step generates.
    steps = ([7, 20, 20, 0], [1, 25, 25, 0], [1, 1, 3, 30], [1, 1, 1, 10], *[[1, 1, 1, 1]] * 3)
    # float32 tokens run in Triton's interpreter only
    dtype, precision = (torch.float32, "float32") if INTERPRETED else (torch.bfloat16, "planes")
    assert_served(learner, backbone, steps, KernelOperator(learner, precision=precision), dtype)


@pytest.mark.usefixtures("triton_kernels")
@pytest.mark.parametrize("learner", ["linear", "mlp"])
def test_prompts_of_one_length_run_in_the_kernel_for_hopper(monkeypatch, learner):
    """A step that reads 21 tokens of each of three prompts runs as one batch; PyTorch replaces the Hopper kernel."""
    operator = KernelOperator(learner, precision="float32", backend="reference")
    monkeypatch.setattr(operator._ops, "choice", lambda q, mini_batch: THUNDERKITTENS)
    monkeypatch.setattr(operator, "_launch", None)
    monkeypatch.setattr("bench.serving.pages.LEAST_TOKENS", 1)
    assert_served(learner, "mamba", ([16, 0, 0], [21, 21, 21], [1, 1, 1]), operator)


@pytest.mark.usefixtures("triton_kernels")
def test_steps_padded_to_the_size_of_a_graph(monkeypatch):
    sizes = []

    def captured(graphs, run):
        sizes.append(run.args[1:])
        return run

    monkeypatch.setattr("bench.serving.graphs.SMALLEST", 16)
    monkeypatch.setattr("bench.serving.graphs.PromptGraphs._captured", captured)
    steps = ([7, 20, 20, 0], [1, 25, 25, 0], [1, 1, 3, 30], [0, 0, 0, 16], [1, 1, 1, 10], *[[1, 1, 1, 1]] * 3)
    dtype, precision = (torch.float32, "float32") if INTERPRETED else (torch.bfloat16, "planes")
    assert_served("linear", "mamba", steps, KernelOperator("linear", precision=precision), dtype, in_graphs=True)
    assert sizes == [(48, 4), (64, 4), (48, 8), (16, 2), (16, 8)]


def assert_served(learner, backbone, steps, operator, dtype=torch.float32, in_graphs=False):
    """Check each request's last logits against a float32 run of that request alone.

    steps: for each step, a list of each request's number of new tokens; 0: the request is not in this step.
    operator, dtype: of the model that runs the steps. in_graphs: run steps with prompts in CUDA graphs.
    """
    config = replace(model_config(f"ttt-{learner}", "tiny", backbone=backbone), layers=2)
    model = from_seed(config, 0, DEVICE, dtype, operator=operator, block=FusedBlock)
    plain = from_seed(config, 0, DEVICE, torch.float32)
    plain.copy_weights(model)
    layout = Layout(config, operator, dtype)
    pages = torch.full((6, len(model.blocks), layout.page_bytes), 3, dtype=torch.int8, device=DEVICE)
    layers = [layout.state(each) for each in pages.unbind(1)]
    ids = torch.randint(512, (4, 60), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    graphs = PromptGraphs(model, 4)
    slots, done, last = [3, 1, 5, 2], [0, 0, 0, 0], {}
    for tokens in steps:
        requests = range(len(tokens))
        generating = [request for request in requests if tokens[request] == 1 and done[request]]
        prompts = [request for request in requests if tokens[request] and request not in generating]
        order = generating + prompts
        lengths, computed = [tokens[r] for r in order], [done[r] for r in order]
        where = torch.tensor([slots[request] for request in order], device=DEVICE)
        before = torch.tensor(computed, dtype=torch.int32, device=DEVICE)
        if prompts:
            ends = torch.tensor([0, *lengths], device=DEVICE).cumsum(0, dtype=torch.int32)
            length = 0 if generating else common_length(lengths, computed, 16)
            step = Packed(ends, before, where, sum(lengths), length)
        else:
            step = Generating(where, before % 16)
        batch = torch.cat([ids[r, done[r] : done[r] + tokens[r]] for r in order])
        with torch.no_grad():
            if in_graphs and prompts:
                rows = graphs.hidden(layers, batch, step).clone()
            else:
                rows = hidden(model, layers, batch, step)
        ends = torch.tensor([tokens[request] for request in order], device=DEVICE).cumsum(0)
        for request, row in zip(order, rows[ends - 1], strict=True):
            done[request] += tokens[request]
            last[request] = row
    for request, row in last.items():
        with torch.no_grad():
            alone = plain.prefill(ids[request : request + 1, : done[request]], plain.init_state(1))[0]
            assert relative_error(model._logits(row[None]), alone) < LOGITS_ERROR[dtype]


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU, float32 models have no kernels for few rows")
@pytest.mark.usefixtures("triton_kernels")
def test_a_served_step_has_no_dependent_launches(monkeypatch):
    """In vLLM, the kernel before a block may write the block's state; a dependent launch could read it too early."""
    operator, dependent = KernelOperator("linear", precision="float32"), []

    def record(name):
        launch = getattr(fused, name)

        def recorded(*given, pdl, **named):
            dependent.append(pdl)
            return launch(*given, pdl=pdl, **named)

        monkeypatch.setattr(fused, name, recorded)

    for name in ("residual_convolution", "query_key", "few_rows_gemm"):
        record(name)
    monkeypatch.setattr(fused, "fits", lambda *given, **named: True)
    config = replace(model_config("ttt-linear", "tiny"), layers=1)
    model = from_seed(config, 0, DEVICE, torch.float32, operator=operator, block=FusedBlock)
    model.generate_step(torch.zeros(2, dtype=torch.int64), model.init_generate_state(2))
    assert dependent == [False] + [True] * 5  # new parameters come before the first launch
    dependent.clear()
    layout, slots = Layout(config, operator, torch.float32), torch.tensor([2, 1])
    layers = [layout.state(torch.zeros(3, layout.page_bytes, dtype=torch.int8))]
    with torch.no_grad():
        hidden(model, layers, slots, Generating(slots, slots.int()))
    assert dependent == [False] * 6


def test_weights_by_name(one_thread):
    model = from_seed(model_config("ttt-linear", "tiny"), 0, "cpu")
    given = {name: weight.clone() + 1 for name, weight in model.weights().items()}
    given["lm_head.weight"] = given.pop("model.embed_tokens.weight")
    assert copy_tensors(model, given.items()) == model.weights().keys()
    assert torch.equal(model.head, given["lm_head.weight"])


def engine_config():
    return SimpleNamespace(
        model_config=SimpleNamespace(dtype=torch.bfloat16, quantization=None, hf_overrides={}),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(enable_prefix_caching=True, block_size=16, mamba_block_size=16),
        speculative_config=None,
        lora_config=None,
        use_v2_model_runner=True,
    )


@pytest.mark.parametrize(
    ("part", "name", "value", "why"),
    [
        ("cache_config", "block_size", 24, "--block-size 24: the prefix cache needs a multiple of .*, 16$"),
        ("cache_config", "mamba_block_size", 24, "--mamba-block-size 24: vLLM needs the value of --block-size, 16; "),
        ("model_config", "hf_overrides", {"ttt_base_lr": 0.1}, "--hf-overrides: "),
        ("parallel_config", "tensor_parallel_size", 2, "--tensor-parallel-size 2: "),
        ("parallel_config", "pipeline_parallel_size", 4, "--pipeline-parallel-size 4: "),
        ("", "speculative_config", object(), "--speculative-config: "),
        ("", "lora_config", object(), "--enable-lora: "),
        ("model_config", "dtype", torch.float16, "--dtype float16: "),
        ("model_config", "quantization", "fp8", "--quantization fp8: "),
        ("", "use_v2_model_runner", False, "TTT models need model runner V2; leave out "),
    ],
)
def test_refused_settings(part, name, value, why):
    config = engine_config()
    assert unsupported_setting(config, 16) == ""
    setattr(getattr(config, part) if part else config, name, value)
    assert re.match(why, unsupported_setting(config, 16))
    if part == "cache_config":
        config.cache_config.enable_prefix_caching = False
        assert unsupported_setting(config, 16) == ""


def test_breakable_graphs_are_refused(monkeypatch):
    for value, why in (("0", "$"), ("1", "VLLM_USE_BREAKABLE_CUDAGRAPH=1: vLLM cannot capture")):
        monkeypatch.setenv("VLLM_USE_BREAKABLE_CUDAGRAPH", value)
        assert re.match(why, unsupported_setting(engine_config(), 16))


def test_vllm_finds_the_plug_in():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {"ttt": "bench.serving:register"}


@pytest.mark.parametrize(("version", "tried"), [("0.32.1", False), ("0.34.0", False), ("0.33.2", True)])
def test_an_untried_vllm_opens_no_checkpoint(tmp_path, monkeypatch, version, tried):
    from transformers import AutoConfig

    monkeypatch.setattr("bench.systems.needs.versions_of", lambda packages: dict.fromkeys(packages, version))
    monkeypatch.setitem(sys.modules, "bench.serving.settings", SimpleNamespace(register_model=lambda: None))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "ttt", "hidden_size": 128, "vocab_size": 512}))
    register()
    with nullcontext() if tried else pytest.raises(ValueError, match=rf"vllm {version}"):
        config = AutoConfig.from_pretrained(tmp_path)
        assert (config.architectures, config.hidden_size, config.vocab_size) == (["TTTForCausalLM"], 128, 512)
