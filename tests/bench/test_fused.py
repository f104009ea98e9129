"""A model of fused blocks computes the plain model's function, and its weights have the same names."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import run

from bench.models.config import TTTConfig, model_config
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock, pdl_is_faster
from tests.interpreter import DEVICE, INTERPRETED
from tk_kernels.edges.few_rows import MOST_ROWS_FEW_OUTPUTS

# Relative error of logits against float64, as in test_models.py.
LIMIT = {torch.float32: 2e-5, torch.bfloat16: 5e-2}

pytestmark = pytest.mark.usefixtures("one_thread", "triton_kernels")

backbones = pytest.mark.parametrize("backbone", ["mamba", "transformer"])


def models(config: TTTConfig, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    with torch.inference_mode():  # a script may build its model in this mode
        fused = from_seed(config, 0, DEVICE, dtype, block=FusedBlock)
    plain = from_seed(config, 0, DEVICE, torch.float64)
    generator = torch.Generator().manual_seed(1)
    for weight in fused.weights().values():
        weight += 0.1 * torch.randn(weight.shape, generator=generator).to(weight)
    plain.copy_weights(fused)
    return fused, plain


def error_of(fused: Any, plain: Any, plan: tuple[int, ...], sequences: int = 2) -> float:
    found, expected = (logits_of(model, plan, sequences) for model in (fused, plain))
    return float((found - expected).norm() / expected.norm())


def logits_of(model: Any, plan: tuple[int, ...], sequences: int = 2) -> torch.Tensor:
    shape = (sequences, sum(map(abs, plan)))
    ids = torch.randint(model.config.vocabulary, shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    return run(model, ids, plan)


def small(backbone: str) -> TTTConfig:
    config = model_config("ttt-linear", "tiny", backbone=backbone)
    return replace(config, layers=1, width=64, ffn_width=64, vocabulary=64)


# On a GPU only 16-bit models use the kernels for few rows; the interpreter runs them in float32.
@pytest.fixture(params=["library", "few rows"] if INTERPRETED else ["library"])
def gemms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with PyTorch's GEMMs and, if Triton interprets kernels, again with this project's few-row GEMMs."""
    if request.param == "few rows":
        monkeypatch.setattr(
            "bench.models.fused.fits", lambda x, weights, swiglu=False: x.numel() <= MOST_ROWS_FEW_OUTPUTS * x.shape[-1]
        )


@backbones
@pytest.mark.usefixtures("gemms")
def test_one_sequence(backbone: str) -> None:
    assert error_of(*models(small(backbone)), (1, 2, -1), sequences=1) <= LIMIT[torch.float32]


@backbones
def test_groups_of_sequences_in_a_model_of_fused_blocks(backbone: str) -> None:
    fused, plain = models(small(backbone))
    fused.least_group_capacity, fused.chunk_tokens = 1, 16  # two sequences, each in chunks of a mini-batch
    assert fused._groups(2, 21) == [slice(0, 1), slice(1, 2)]
    assert error_of(fused, plain, (5, 21, -2)) <= LIMIT[torch.float32]


@backbones
@pytest.mark.usefixtures("gemms")
def test_every_epsilon(backbone: str) -> None:
    """Both models use the same epsilons: norms get inputs near 1e-3, so one doubled epsilon would change the logits."""
    fused, plain = models(small(backbone))
    tiny = "embed_tokens|conv.conv|conv_q|ttt_norm|o_proj|down_proj"
    if backbone == "transformer":
        tiny += "|q_proj"
    for name, weight in fused.weights().items():
        if re.search(tiny, name):
            weight *= 1e-3
    plain.copy_weights(fused)
    found, expected = (logits_of(model, (5, -1)) for model in (fused, plain))
    assert (found - expected).norm() <= LIMIT[torch.float32] * expected.norm()
    norms = [module for module in plain.modules() if isinstance(module, torch.nn.RMSNorm | torch.nn.LayerNorm)]
    assert len(norms) == (5 if backbone == "mamba" else 4)
    for norm in norms:
        norm.eps *= 2
        assert (found - logits_of(plain, (5, -1))).norm() > 1e-3 * expected.norm()
        norm.eps /= 2


@backbones
def test_every_parameter_may_change_between_calls(backbone: str) -> None:
    fused, plain = models(small(backbone))
    generator = torch.Generator().manual_seed(3)
    expected = logits_of(plain, (2,))
    logits_of(fused, (2,))  # now the model has cached values that it computes from parameters
    for name, weight in fused.weights().items():
        weight += 0.1 * torch.randn(weight.shape, generator=generator).to(weight)
        found = logits_of(fused, (2,))
        assert (found - expected).norm() > 1e-3 * expected.norm(), f"{name} has no effect"
        plain.copy_weights(fused)
        expected = logits_of(plain, (2,))
        assert (found - expected).norm() <= LIMIT[torch.float32] * expected.norm(), name


@backbones
def test_parameters_may_move_between_calls(backbone: str) -> None:
    fused, plain = models(small(backbone))
    error_of(fused, plain, (1,))
    fused.double().float()
    assert error_of(fused, plain, (2,)) <= LIMIT[torch.float32]
    for weight in fused.weights().values():
        weight *= 1.1
    plain.copy_weights(fused)
    assert error_of(fused, plain, (2, -1)) <= LIMIT[torch.float32]


@backbones
def test_packed_weights_keep_their_names_and_values(backbone: str) -> None:
    config = model_config("ttt-linear", "tiny", backbone=backbone)
    fused, plain = (from_seed(config, 0, "cpu", torch.float32, **options) for options in ({"block": FusedBlock}, {}))
    assert list(fused.weights()) == list(plain.weights())
    assert all(torch.equal(weight, plain.weights()[name]) for name, weight in fused.weights().items())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LIMIT)
def test_a_model_on_a_gpu(dtype: torch.dtype) -> None:
    for system in ("ttt-linear", "ttt-mlp"):
        assert error_of(*models(model_config(system, "tiny"), dtype), (33, -3)) <= LIMIT[dtype]  # NaN fails too


@pytest.mark.parametrize("heads", [2, 12, 16])
def test_rows_of_the_packed_gemm_start_where_kernels_can_read_16_bytes(heads: int) -> None:
    config = replace(model_config("ttt-linear", "tiny"), width=64 * heads, heads=heads, layers=1)
    block = FusedBlock(config, torch.device("cpu"), torch.bfloat16)
    projected = torch.nn.functional.linear(torch.ones(1, config.width, dtype=torch.bfloat16), block._projections)
    assert projected.stride(0) % 8 == 0
    assert projected[..., block._lr_rows()].shape == (1, heads)


@pytest.mark.parametrize(("learner", "expected"), [("linear", [1, 2, 4, 8, 33, 64]), ("mlp", [1, 2, 33, 64])])
def test_the_batches_with_dependent_launches(learner: str, expected: list[int]) -> None:
    assert [batch for batch in (1, 2, 4, 8, 9, 32, 33, 64) if pdl_is_faster(learner, batch)] == expected
