"""The Gluon kernels for generate and forward match the float64 reference in an emulator on a CPU."""

from importlib import import_module

import generate_cases
import packed_cases
import pytest
import torch
from emulated_gluon import Copies, Emulated, Pointer, Shared, Value
from generate_cases import (
    GENERATE,
    check_rope_and_rates_in_the_launch,
    check_slots,
    compare,
    outer_parameters,
    random_state,
    random_token,
)
from reference_cases import OPERATORS, case

from tests.tk_kernels.forward_prompts import assert_equal
from tk_kernels.generate import common
from tk_kernels.generate.common import PRECISIONS
from tk_kernels.ttt_mlp import forward, forward_gluon, ops

H, D, m = 2, 64, 16
SIXTEEN_BITS = [name for name in PRECISIONS if name != "float32"]

operators = pytest.mark.parametrize("operator", GENERATE)


@pytest.fixture
def kernel(operator: str, monkeypatch: pytest.MonkeyPatch) -> Emulated:
    module = import_module(f"tk_kernels.ttt_{operator}.generate_sm90")
    emulated = Emulated(module.dual)
    monkeypatch.setattr(module, "dual", emulated)
    monkeypatch.setattr(common, "runs_sm90", lambda device: True)
    monkeypatch.setattr(generate_cases, "DEVICE", "cpu")
    monkeypatch.setattr(generate_cases, "INTERPRETED", False)  # the emulator rounds like a GPU
    return emulated


@operators
@pytest.mark.parametrize("precision", SIXTEEN_BITS)
def test_steps_are_the_reference(operator: str, precision: str, kernel: Emulated) -> None:
    start = random_state(operator, [0, 3, 14, 15], H, D, m, std=0.2)
    compare(operator, "dual", precision, start, 4)
    assert kernel.launches == 4


@operators
@pytest.mark.parametrize("mini_batch", [1, 4, 5])
def test_shorter_mini_batches(operator: str, mini_batch: int, kernel: Emulated) -> None:
    start = random_state(operator, [0, mini_batch - 1], H, D, mini_batch)
    compare(operator, "dual", "planes", start, 3)
    assert kernel.launches == 3


@operators
def test_rope_and_lr_logits_in_the_launch(operator: str, kernel: Emulated) -> None:
    check_rope_and_rates_in_the_launch(operator, [2, 15], H, D, m, "planes")
    assert kernel.launches == 2


@operators
def test_slots(operator: str, kernel: Emulated) -> None:
    check_slots(operator, [2, 15], H, D, m)
    assert kernel.launches == 2


@operators
def test_strided_tokens(operator: str, kernel: Emulated) -> None:
    generate = GENERATE[operator]
    state, outer = random_state(operator, [1, 15], H, D, m), outer_parameters(H, D, m)
    q, k, v, lr = random_token(2, H, D, torch.bfloat16, 1)
    wide, out = torch.full((2, 3, H, D), 7.0).bfloat16(), torch.full((2, 3, H, D), 7.0)
    wide[:, 1] = v
    states = [generate.GenerateState.from_state(state, "dual", "planes") for _ in range(2)]
    expected = generate.generate_step(q, k, v, lr, *outer, states[0], out=torch.empty(2, H, D))
    generate.generate_step(q, k, wide[:, 1], lr, *outer, states[1], out=out[:, 1])
    assert torch.equal(out[:, 1], expected)
    assert bool((out[:, ::2] == 7).all())


def test_the_emulator_finds_errors() -> None:
    memory, copies = Pointer.to(torch.arange(4.0)), Copies()
    offsets = Value(torch.arange(4))
    with pytest.raises(IndexError):
        (memory + 1 + offsets).read(None, None)
    assert (memory + 1 + offsets).read(offsets < 3, 0).tolist() == [1, 2, 3, 0]
    shared = Shared(torch.full((4,), float("nan")))
    copies.async_copy_global_to_shared(shared, memory + offsets)
    copies.commit_group()
    copies.wait_group(1)
    assert bool(shared.load().tensor.isnan().all())
    copies.wait_group(0)
    assert shared.load().tensor.tolist() == [0, 1, 2, 3]
    assert (Value(torch.ones(2).bfloat16()) * Value(torch.tensor(1.5))).dtype == torch.float32


@pytest.mark.parametrize(("mini_batch", "tokens"), [(16, 20), (5, 12), (16, 32)])
@pytest.mark.parametrize("last", [1.0, 0.0, 1e-30, -1.0])  # times the token scale of the last token
def test_forward_is_the_reference(monkeypatch: pytest.MonkeyPatch, last: float, mini_batch: int, tokens: int) -> None:
    kernel = Emulated(forward_gluon.forward)
    monkeypatch.setattr(forward_gluon, "forward", kernel)
    monkeypatch.setattr(forward, "takes_gluon", lambda *_: True)
    given = case("mlp", tokens, batch=1, heads=2, head_dim=D, mini_batch=mini_batch)
    state = type(given.state)(*(x.float() for x in given.state[:-1]), given.state.position.clone())
    given.token_scale[-1] *= last
    rounded = [x.bfloat16() for x in given[:3]]
    out, after = ops.forward(*rounded, *(x.float() for x in given[3:7]), state, start=0, backend="triton")
    expected, state_after = OPERATORS["mlp"].forward(*(x.double() for x in rounded), *given[3:], start=0)
    assert kernel.launches == 1
    assert_equal((out, after), (expected, state_after), 1e-2)


def test_forward_over_sequences_of_different_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Emulated(forward_gluon.forward)
    monkeypatch.setattr(forward_gluon, "forward", kernel)
    monkeypatch.setattr(forward, "takes_gluon", lambda *_: True)
    monkeypatch.setattr("tk_kernels.forward.operator.available", lambda: "")
    packed_cases.check("mlp", D, m, "planes", "cpu")
    assert kernel.launches == 1
