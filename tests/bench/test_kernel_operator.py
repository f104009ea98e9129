"""TTT models on kernels match the float64 model, whether RoPE is applied in the TTT kernel or before it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from plans import run

from bench.models.config import TTTConfig, model_config
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from tests.interpreter import DEVICE
from tests.tk_kernels.forward_prompts import OPS
from tests.tk_kernels.tensors import assert_close

LIMIT = 2e-5  # relative error of logits in float32, as in test_models.py
OTHER = {"base_lr": 0.5, "rope_theta": 50.0}

pytestmark = pytest.mark.usefixtures("one_thread", "triton_kernels")

learners = pytest.mark.parametrize("learner", OPS)


@pytest.fixture
def rotated_by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets, for each forward of an operator, whether it applied RoPE."""
    calls: list[bool] = []

    def recorded(forward: Any, *given: Any, rope: bool, **named: Any) -> Any:
        calls.append(rope)
        return forward(*given, rope=rope, **named)

    monkeypatch.setattr("tk_kernels.forward.operator.HEAD_DIMS", (32,))  # small, so fast
    for ops in OPS.values():
        monkeypatch.setattr(ops, "forward", partial(recorded, ops.forward))
    return calls


def models(config: TTTConfig, **options: Any) -> tuple[Any, Any]:
    operator = KernelOperator(config.learner, **({"precision": "float32", "backend": "reference"} | options))
    kernels = from_seed(config, 0, DEVICE, torch.float32, operator=operator, block=FusedBlock)
    plain = from_seed(config, 0, DEVICE, torch.float64)
    generator = torch.Generator().manual_seed(1)
    for name, weight in kernels.weights().items():
        weight += 0.1 * torch.randn(weight.shape, generator=generator).to(weight)
        plain.weights()[name].copy_(weight)
    return kernels, plain


def config_of(learner: str, **changes: Any) -> TTTConfig:
    config = model_config(f"ttt-{learner}", "tiny")
    return replace(config, layers=1, heads=2, width=64, ffn_width=64, vocabulary=64, **changes)


def check(kernels: Any, plain: Any, prompt: int, steps: int) -> None:
    """Compare two models' logits after prompt // 3 and `prompt` tokens, and after each of `steps` generate steps."""
    ids = torch.randint(64, (2, prompt + steps), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    state, exact = kernels.init_state(2), plain.init_state(2)
    for piece in ids[:, :prompt].split([prompt // 3, prompt - prompt // 3], dim=1):
        assert_close(kernels.prefill(piece, state)[0], plain.prefill(piece, exact)[0], LIMIT)
    generating = kernels.generate_state(state)
    for t in range(prompt, prompt + steps):
        got, _ = kernels.generate_step(ids[:, t], generating)
        assert_close(got, plain.generate_step(ids[:, t], exact)[0], LIMIT)


@learners
@pytest.mark.parametrize("backbone", ["mamba", "transformer"])
@pytest.mark.parametrize("changes", [{}, OTHER], ids=["published", "other"])
def test_a_model_on_kernels(
    learner: str, backbone: str, changes: dict[str, Any], rotated_by_kernel: list[bool]
) -> None:
    check(*models(config_of(learner, backbone=backbone, **changes)), prompt=20, steps=2)
    ready = backbone == "mamba"  # which applies RoPE with its convolutions
    assert rotated_by_kernel == 2 * [not ready and not changes]


@learners
def test_a_forward_in_pytorch(learner: str, rotated_by_kernel: list[bool]) -> None:
    check(*models(config_of(learner), forward_in_pytorch=True), prompt=14, steps=4)
    assert rotated_by_kernel == []


@learners
@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("precision", ["float32", "planes", "bfloat16"])
def test_the_generate_state_has_the_requested_form_and_precision(learner: str, form: str, precision: str) -> None:
    kernels, _ = models(config_of(learner), form=form, precision=precision, forward_in_pytorch=True)
    state = kernels.init_generate_state(2).layers[0].inner
    assert (state.form, state.precision) == (form, precision)
    assert kernels.operator.generate_state(state) is state


def test_one_operator_may_serve_models_with_different_rope(rotated_by_kernel: list[bool]) -> None:
    """The operator keeps a RoPE table between steps; each model's steps must use the table of that model."""
    first, first_plain = models(config_of("linear", backbone="transformer"))
    second, second_plain = models(config_of("linear", backbone="transformer", **OTHER))
    second.operator = first.operator
    check(first, first_plain, prompt=3, steps=3)
    check(second, second_plain, prompt=3, steps=3)
    check(first, first_plain, prompt=3, steps=3)


@learners
def test_a_prompt_after_a_captured_state_is_reset(learner: str, rotated_by_kernel: list[bool]) -> None:
    kernels, plain = models(config_of(learner, mini_batch=4))
    ids = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    state = kernels.init_state(2)
    generating = kernels.generate_state(state)
    for _ in range(2):
        kernels.reset_state(state)
        kernels.prefill(ids[:, :7], state)
        assert kernels.generate_state(state, into=generating) is generating
        for t in (7, 8):
            got, _ = kernels.generate_step(ids[:, t], generating)
        assert_close(got, run(plain, ids, (9,)), LIMIT)


@learners
def test_a_model_on_kernels_at_mini_batches_of_32(learner: str, rotated_by_kernel: list[bool]) -> None:
    check(*models(config_of(learner, mini_batch=32)), prompt=30, steps=3)
    assert len(rotated_by_kernel) == 2
