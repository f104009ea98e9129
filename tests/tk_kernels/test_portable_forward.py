"""The Triton forward kernels match the reference; the operator selects the right backend."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from reference_cases import Case, case

from tests.interpreter import DEVICE, INTERPRETED
from tests.tk_kernels.forward_prompts import OPS, assert_equal, exact
from tests.tk_kernels.tensors import OUTPUT_ERROR
from tk_kernels import build
from tk_kernels.edges import swiglu_product
from tk_kernels.forward import operator
from tk_kernels.generate.common import dependent_launch, runs_sm90
from tk_kernels.ttt_linear import ops as linear_ops
from tk_kernels.ttt_mlp import ops as mlp_ops

# float32: the references' limit. 16 bits: outputs and, on a GPU, matmul operands are rounded.
LIMITS = {torch.float32: 2e-6, torch.bfloat16: OUTPUT_ERROR[torch.bfloat16], torch.float16: 5e-3}
interpreted = pytest.mark.skipif(not INTERPRETED, reason="float32 tokens run in Triton's interpreter only")


def in_type(given: Case, dtype: torch.dtype) -> list[Any]:
    *tensors, position = given.state
    state = type(given.state)(*(x.float().to(DEVICE) for x in tensors), position.clone().to(DEVICE))
    tokens = [x.to(DEVICE, dtype) for x in given[:3]]
    return [*tokens, *(x.float().to(DEVICE) for x in given[3:7]), state]


@interpreted
@pytest.mark.parametrize(
    ("name", "head_dim", "mini_batch", "tokens"),
    [
        ("linear", 64, 16, 37),
        ("linear", 96, 16, 20),
        ("linear", 128, 16, 16),
        ("linear", 64, 4, 9),
        ("linear", 64, 64, 66),
        ("mlp", 64, 16, 37),
        ("mlp", 64, 5, 12),
        ("mlp", 64, 32, 40),
        ("mlp", 64, 64, 66),
        ("mlp", 96, 16, 37),
        ("mlp", 128, 5, 12),
    ],
)
def test_equals_the_reference(triton_kernels, poisoned, name, head_dim, mini_batch, tokens):
    heads = 2 if tokens == 37 else 1
    given = case(name, tokens, batch=1, heads=heads, head_dim=head_dim, mini_batch=mini_batch)
    found = OPS[name].forward(*in_type(given, torch.float32), start=0, backend="triton")
    assert_equal(found, exact(name, list(given)), LIMITS[torch.float32])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_tokens_of_16_bits(triton_kernels, name, dtype):
    given = case(name, 20, batch=1, heads=1, head_dim=64)
    out, state = OPS[name].forward(*in_type(given, dtype), start=0, backend="triton")
    assert out.dtype == dtype
    assert_equal((out, state), exact(name, list(given)), LIMITS[dtype])


@interpreted
@pytest.mark.parametrize("name", OPS)
def test_pieces_with_rope_in_place_are_the_whole(triton_kernels, name):
    given = case(name, 20, batch=1, heads=1, head_dim=64)
    *tokens, scale, weight, bias, state = in_type(given, torch.float32)
    outputs = []
    for at, start in ((slice(0, 5), 0), (slice(5, 20), 5)):
        piece = [x[:, at] for x in tokens]
        options = {"rope": True, "inplace": True, "start": start, "backend": "triton"}
        out, state = OPS[name].forward(*piece, scale, weight, bias, state, **options)
        outputs.append(out)
    assert_equal((torch.cat(outputs, 1), state), exact(name, list(given), rotate=True), 5e-6)


@interpreted
@pytest.mark.parametrize("name", OPS)
def test_strided_tokens_of_one_projection(triton_kernels, name):
    given = case(name, 18, batch=1, heads=2, head_dim=64)
    arguments = in_type(given, torch.float32)
    queries_and_keys = torch.stack(arguments[:2], 3)
    found = OPS[name].forward(*queries_and_keys.unbind(3), *arguments[2:], start=0, backend="triton")
    assert_equal(found, exact(name, list(given)), LIMITS[torch.float32])


@pytest.mark.parametrize(("head_dim", "rotate"), [(64, False), (96, True)])
@pytest.mark.parametrize("name", OPS)
def test_the_reference_as_a_backend(name, head_dim, rotate):
    given = case(name, 20, batch=1, heads=2, head_dim=head_dim)
    arguments = in_type(given, torch.float32)
    found = OPS[name].forward(*arguments, start=0, rope=rotate, backend="reference")
    assert_equal(found, exact(name, list(given), rotate), LIMITS[torch.float32])


def tokens_on(device: str, head_dim: int = 64, dtype: torch.dtype = torch.bfloat16) -> Any:
    return SimpleNamespace(is_cuda=device == "cuda", device=device, dtype=dtype, shape=(1, 16, 2, head_dim))


@pytest.mark.parametrize(
    ("tokens", "mini_batch", "hopper", "expected"),
    [
        (tokens_on("cuda"), 16, True, {"linear": "thunderkittens", "mlp": "thunderkittens"}),
        (tokens_on("cuda"), 16, False, {"linear": "triton", "mlp": "triton"}),
        (tokens_on("cuda"), 8, True, {"linear": "triton", "mlp": "triton"}),
        (tokens_on("cuda", dtype=torch.float16), 16, True, {"linear": "triton", "mlp": "triton"}),
        (tokens_on("cuda", dtype=torch.float32), 16, True, {"linear": "reference", "mlp": "reference"}),
        (tokens_on("cuda", head_dim=96), 16, True, {"linear": "triton", "mlp": "triton"}),
        (tokens_on("cpu"), 16, True, {"linear": "reference", "mlp": "reference"}),
    ],
)
@pytest.mark.parametrize("name", OPS)
def test_the_operator_takes_the_fastest_backend(monkeypatch, name, tokens, mini_batch, hopper, expected):
    monkeypatch.setattr(build, "unavailable_on", lambda device, kernel: "" if hopper else "no Hopper GPU")
    monkeypatch.setattr(operator, "available", lambda: "")
    assert OPS[name].choice(tokens, mini_batch) == expected[name]


def test_an_old_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    expected = "the GPU is Tesla T4 (compute capability 7.5), and the kernels need 8.0 or higher"
    assert operator.available() == expected


@pytest.mark.parametrize(("capability", "dependent"), [((8, 6), False), ((9, 0), True), ((12, 0), True)])
def test_launches_are_plain_before_hopper(monkeypatch, capability, dependent):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert dependent_launch(True)["PDL"] == dependent
    monkeypatch.setenv("TTT_BENCH_ARCH", "portable")
    assert dependent_launch(True) == {"PDL": False}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("portable", "TTT_BENCH_ARCH=portable disables the Hopper kernels"),
        ("sm_80", "TTT_BENCH_ARCH=sm_80 is unknown: unset it, or set it to portable"),
    ],
)
def test_the_hopper_kernels_can_be_disabled_within_a_process(monkeypatch, value, reason):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    monkeypatch.delenv("TTT_BENCH_ARCH", raising=False)
    before, gpu = swiglu_product.available(), torch.device("cuda")
    assert "TTT_BENCH_ARCH" not in before
    assert runs_sm90(gpu)
    monkeypatch.setenv("TTT_BENCH_ARCH", value)
    assert linear_ops.available() == mlp_ops.available(32) == swiglu_product.available() == reason
    assert not runs_sm90(gpu)
    monkeypatch.delenv("TTT_BENCH_ARCH")
    assert (swiglu_product.available(), runs_sm90(gpu)) == (before, True)
