"""The cost formulas give the number of bytes that a state's tensors occupy."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.state_size import conv_state_bytes, state_bytes
from harness.schema.case import Case

CASE = Case("ttt-linear", "triton-dual", "tiny", "generate", 3, 64, dtype="bfloat16")
POSITION = 4  # bytes of a head's position in its mini-batch, which the formulas omit
PRECISIONS = {"float32": "float32", "float32-planes": "planes", "bfloat16": "bfloat16", "float16": "float16"}


@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("state_dtype", PRECISIONS)
@pytest.mark.parametrize("learner", ["linear", "mlp"])
def test_the_bytes_of_a_generate_state(learner, state_dtype, form):
    case = replace(CASE, system=f"ttt-{learner}", state_dtype=state_dtype)
    config = model_config(case.system, case.size)
    model = from_seed(config, 0, "cpu", torch.bfloat16)
    generate = import_module(f"tk_kernels.ttt_{learner}.generate")
    layers = model.init_state(case.batch, case.context).layers
    states = [generate.GenerateState.from_state(layer.inner, form, PRECISIONS[state_dtype]) for layer in layers]
    windows = [cache for layer in layers for cache in (layer.block_conv, layer.qk_conv)]
    tensors = [x for state in states for x in state.tensors()] + windows
    positions = case.batch * config.layers * config.heads * POSITION
    assert (
        sum(x.numel() * x.element_size() for x in tensors) == case.batch * state_bytes(config, case, form) + positions
    )


@pytest.mark.parametrize("learner", ["linear", "mlp"])
def test_the_bytes_of_a_forward_state(learner):
    case = replace(CASE, system=f"ttt-{learner}", phase="forward", state_dtype="float32")
    config = model_config(case.system, case.size)
    layers = from_seed(config, 0, "cpu", torch.bfloat16).init_state(case.batch, case.context).layers
    weights = [x for layer in layers for name, x in layer.inner._asdict().items() if name[0] in "Wb"]
    windows = [cache for layer in layers for cache in (layer.block_conv, layer.qk_conv)]
    assert sum(x.numel() * x.element_size() for x in weights + windows) == case.batch * state_bytes(config, case)
    assert conv_state_bytes(replace(config, backbone="transformer"), 2) == 0


def test_the_bytes_of_mamba_are_its_ssm_state_and_conv_state():
    case = replace(CASE, system="mamba", backend="torch", state_dtype="float32")
    config = model_config(case.system, "1.3b")
    state, windows = 48 * 4096 * 16 * 4, 48 * 4096 * 3 * 2
    assert state_bytes(config, case) == state_bytes(config, replace(case, phase="forward")) == state + windows


@pytest.mark.parametrize(("phase", "tokens"), [("forward", 100), ("generate", 100), ("request", 100 + 28)])
@pytest.mark.parametrize(("system", "kv_width"), [("transformer", 2048), ("transformer-gqa", 512)])
def test_the_bytes_of_a_transformer_are_a_key_and_a_value_per_token(system, kv_width, phase, tokens):
    case = replace(CASE, system=system, backend="torch", phase=phase, context=100, options=(("steps", 28),))
    assert state_bytes(model_config(system, "1.3b"), case) == 2 * 24 * kv_width * tokens * 2
