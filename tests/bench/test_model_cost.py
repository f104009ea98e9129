"""Lower bounds on a model's FLOPs and bytes follow from its parameters, sequence mixer and state."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.cost import model_work, total
from bench.models.config import model_config, parameter_count
from bench.systems.mamba.ssm import Mamba2SSM
from harness.schema.case import Case
from harness.schema.work import EDGES, HEAD, OTHER, PRODUCTS, SCAN, TTT, Work
from tk_kernels.cost import COSTS

cost = COSTS["linear"]
CASE = Case("transformer", "torch", "1.3b", "forward", 16, 2048)


def work(case, **more):
    config = model_config(case.system, case.size)
    return total(model_work(config, parameter_count(config), case, **more))


def test_a_forward_of_the_transformer():
    config = model_config("transformer", "1.3b")
    embedding = config.vocabulary * config.width
    found = work(CASE)
    gemms = 2 * (parameter_count(config) - embedding) * 16 * 2048
    attention = 16 * 24 * 2 * 2048**2 * 2048
    assert found.flops == gemms + 2 * 16 * embedding + attention
    assert found.bytes == 2 * parameter_count(config) + 8 * 16 * 2048 + 196_608 * 16 * 2048


def test_a_step_of_the_transformer_reads_weights_and_cache():
    found = work(replace(CASE, phase="generate", batch=512))
    parameters = parameter_count(model_config("transformer", "1.3b"))
    assert found.bytes == 2 * parameters + 8 * 512 + 512 * 2048 * 196_608
    assert found.flops == 2 * 512 * parameters + 24 * 4 * 512 * 2048 * 2048
    assert work(replace(CASE, system="transformer-gqa", phase="generate", batch=512)).flops == found.flops


def test_a_step_of_mamba_does_not_depend_on_the_context():
    case = replace(CASE, system="mamba", phase="generate")
    config = model_config("mamba", "1.3b")
    assert work(case) == work(replace(case, context=32768))
    state = config.layers * config.inner_width * config.state_dim
    windows = config.layers * config.inner_width * (3 + 1)  # read and written
    assert work(case).bytes == 2 * parameter_count(config) + 8 * 16 + 2 * 16 * 2 * state + 2 * 16 * windows
    prompt = replace(case, phase="forward", context=1)
    assert work(prompt).bytes == 2 * parameter_count(config) + 8 * 16 + 16 * 2 * state + 2 * 16 * windows * 3 // 4


@pytest.mark.parametrize(
    ("state_dtype", "form"), [("float32-planes", "dual"), ("float32", "dual"), ("float32", "primal")]
)
def test_a_step_of_ttt(state_dtype, form):
    case = replace(CASE, system="ttt-linear", phase="generate", state_dtype=state_dtype)
    config = model_config("ttt-linear", "1.3b")
    learners = 24 * 32 * 65 * 64
    found = work(case, form=form)
    inner = 24 * cost.generate_flops(16, 32, 64, 16, form)
    assert found.flops == 2 * 16 * (parameter_count(config) - learners) + inner
    moved = 24 * cost.generate_state_traffic(16, 32, 64, 16, form, state_dtype.removeprefix("float32-"))
    windows = 24 * 2 * 2048 * 4 * 2 * 16
    assert found.bytes == 2 * (parameter_count(config) - learners) + 8 * 16 + moved + windows


def test_a_forward_of_ttt_reads_initial_learners_and_writes_the_state():
    case = replace(CASE, system="ttt-mlp", batch=4, state_dtype="float32")
    learners = 24 * 32 * (2 * 64 * 256 + 256 + 64)
    parameters = parameter_count(model_config("ttt-mlp", "1.3b"))
    windows = 24 * 2 * 2048 * 3 * 2 * 4
    state = 4 * learners * (1 + 4)
    assert work(case).bytes == 2 * (parameters - learners) + 8 * 4 * 2048 + state + windows


@pytest.mark.parametrize("phase", ["forward", "generate"])
def test_an_untied_embedding_multiplies_nothing(phase):
    case = replace(CASE, system="ttt-linear", phase=phase)
    config = model_config(case.system, case.size)
    untied = replace(config, tied=False)
    assert parameter_count(untied) == parameter_count(config) + config.vocabulary * config.width
    apart, shared = (model_work(each, parameter_count(each), case) for each in (untied, config))
    assert apart == shared


def test_the_decays_of_mamba_count_with_its_scan_alone():
    case = replace(CASE, system="mamba", batch=1, context=100)
    parts = model_work(model_config("mamba", "1.3b"), 10**9, case)
    others = 10**9 - 32000 * 2048
    assert parts[PRODUCTS] == Work(2 * (others - 48 * 4096 * 16) * 100, 2 * others)


def test_mamba_2_has_a_larger_state_and_convolves_b_and_c():
    case = replace(CASE, system="mamba2", phase="generate", batch=512)
    mamba = model_config("mamba", "1.3b")
    layer = SimpleNamespace(mixer=SimpleNamespace(d_state=128, ngroups=1))
    inner = SimpleNamespace(backbone=SimpleNamespace(layers=[layer]))
    config = Mamba2SSM().cost_config(SimpleNamespace(config=mamba, inner=inner))
    apart, shared = (model_work(each, 10**9, case) for each in (config, mamba))
    assert apart[SCAN].bytes == 8 * shared[SCAN].bytes == 2 * 2 * 512 * 48 * 4096 * 128
    assert (apart[SCAN].flops, shared[SCAN].flops) == (5 * 512 * 48 * 4096 * 128, 6 * 512 * 48 * 4096 * 16)
    assert apart[EDGES].bytes == 512 * 48 * (4096 + 2 * 128) * 4 * 2
    assert apart[PRODUCTS].flops == 2 * 512 * (10**9 - 32000 * 2048)


def test_the_flops_of_ttt_follow_from_the_mini_batch_size():
    case = replace(CASE, system="ttt-linear")
    config = model_config("ttt-linear", "1.3b")
    for mini_batch in (16, 32):
        found = model_work(replace(config, mini_batch=mini_batch), parameter_count(config), case)
        assert found[TTT].flops == 24 * cost.forward_flops(16, 2048, 32, 64, mini_batch)


def test_a_request_is_its_prompt_and_its_steps():
    case = replace(CASE, phase="request", options=(("steps", 3),))
    prompt = work(CASE)
    midway = work(replace(CASE, phase="generate", context=2048 + 1))
    assert work(case).flops == prompt.flops + 3 * midway.flops
    midway = work(replace(CASE, phase="generate", context=2048 + 64))
    assert work(replace(CASE, phase="request")).bytes == prompt.bytes + 128 * midway.bytes


def test_the_gemms_of_an_unknown_model_are_counted():
    config = SimpleNamespace(vocabulary=10, width=4)
    case = Case("rwkv7", "fla", "1.3b", "forward", 2, 8)
    found = model_work(config, 100, case)
    assert total(found).metrics() == {"flops": 2 * 2 * (60 * 8 + 40), "bytes": 200 + 8 * 16}
    assert list(found) == [PRODUCTS, HEAD, EDGES, OTHER]


@pytest.mark.parametrize(("system", "mixing"), [("ttt-mlp", TTT), ("transformer", SCAN), ("mamba", SCAN)])
def test_work_is_counted_by_the_parts_of_a_profile(system, mixing):
    case = replace(CASE, system=system)
    config = model_config(system, "1.3b")
    parts = model_work(config, parameter_count(config), case)
    assert set(parts) == {PRODUCTS, HEAD, EDGES, OTHER, mixing}
    assert parts[HEAD].flops == 2 * 16 * config.vocabulary * config.width
    assert parts[EDGES] == Work(0, {"ttt-mlp": 24 * 4096 * 6, "mamba": 48 * 4096 * 6, "transformer": 0}[system] * 16)
    assert parts[PRODUCTS].flops / work(case).flops > 0.7
    assert parts[mixing].flops > 0
    assert parts[mixing].bytes > 0
