"""TTT models on kernels match the float64 model, whether RoPE is applied in the TTT kernel or before it."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from plans import run
from torch import Tensor

from bench.models.config import TTTConfig, model_config
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from bench.models.ttt import TTTBlock
from tests.interpreter import DEVICE
from tests.tk_kernels.tensors import assert_close
from tk_kernels.reference.layer import rope as rotate
from tk_kernels.reference.token_rows import overwrite
from tk_kernels.ttt_linear import ops as linear_ops
from tk_kernels.ttt_linear import reference as linear_reference
from tk_kernels.ttt_mlp import ops as mlp_ops
from tk_kernels.ttt_mlp import reference as mlp_reference

LIMIT = 2e-5  # relative error of logits in float32, as in test_models.py
MODULES: dict[str, tuple[ModuleType, ModuleType]] = {
    "linear": (linear_ops, linear_reference),
    "mlp": (mlp_ops, mlp_reference),
}
OTHER = {"base_lr": 0.5, "rope_theta": 50.0}

pytestmark = pytest.mark.usefixtures("one_thread", "triton_kernels")

learners = pytest.mark.parametrize("learner", MODULES)
blocks = pytest.mark.parametrize("block", [TTTBlock, FusedBlock])


@pytest.fixture
def rotated_by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    calls: list[bool] = []
    for ops, reference in MODULES.values():
        monkeypatch.setattr(ops, "forward", stand_in(reference, calls))
    return calls


def stand_in(reference: ModuleType, calls: list[bool]) -> Any:
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        *rest: Any,
        rope: bool,
        start: int | None,
        inplace: bool,
        backend: str,
    ) -> tuple[Tensor, Any]:
        assert inplace
        calls.append(rope)
        if rope:
            state, mini_batch = rest[-1], len(rest[0])
            position = (int(state.position[0]) + torch.arange(q.shape[1], device=q.device)) % mini_batch
            q, k = rotate(q, position), rotate(k, position)
        out, after = reference.forward(q, k, v, lr, *rest, start=start)
        overwrite(rest[-1], after)
        return out, rest[-1]

    return forward


def models(config: TTTConfig, block: type[TTTBlock], **options: Any) -> tuple[Any, Any]:
    operator = KernelOperator(config.learner, **({"precision": "float32"} | options))
    kernels = from_seed(config, 0, DEVICE, torch.float32, operator=operator, block=block)
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
@blocks
@pytest.mark.parametrize("backbone", ["mamba", "transformer"])
@pytest.mark.parametrize("changes", [{}, OTHER], ids=["published", "other"])
def test_a_model_on_kernels(
    learner: str, block: type[TTTBlock], backbone: str, changes: dict[str, Any], rotated_by_kernel: list[bool]
) -> None:
    check(*models(config_of(learner, backbone=backbone, **changes), block), prompt=20, steps=2)
    ready = (block, backbone) == (FusedBlock, "mamba")  # which applies RoPE with its convolutions
    assert rotated_by_kernel == 2 * [not ready and not changes]


@learners
def test_a_forward_in_pytorch(learner: str, rotated_by_kernel: list[bool]) -> None:
    check(*models(config_of(learner), TTTBlock, forward_in_pytorch=True), prompt=14, steps=4)
    assert rotated_by_kernel == []


@learners
@pytest.mark.parametrize("form", ["dual", "primal"])
@pytest.mark.parametrize("precision", ["float32", "planes", "bfloat16"])
def test_the_generate_state_has_the_requested_form_and_precision(learner: str, form: str, precision: str) -> None:
    kernels, _ = models(config_of(learner), TTTBlock, form=form, precision=precision, forward_in_pytorch=True)
    state = kernels.init_generate_state(2).layers[0].inner
    assert (state.form, state.precision) == (form, precision)
    assert kernels.operator.generate_state(state) is state


def test_one_operator_may_serve_models_with_different_rope(rotated_by_kernel: list[bool]) -> None:
    """The operator keeps a RoPE table between steps; each model's steps must use the table of that model."""
    first, first_plain = models(config_of("linear"), TTTBlock)
    second, second_plain = models(config_of("linear", **OTHER), TTTBlock)
    second.operator = first.operator
    check(first, first_plain, prompt=3, steps=3)
    check(second, second_plain, prompt=3, steps=3)
    check(first, first_plain, prompt=3, steps=3)


@learners
def test_a_prompt_after_a_captured_state_is_reset(learner: str, rotated_by_kernel: list[bool]) -> None:
    kernels, plain = models(config_of(learner, mini_batch=4), FusedBlock)
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
    check(*models(config_of(learner, mini_batch=32), FusedBlock), prompt=30, steps=3)
    assert len(rotated_by_kernel) == 2
