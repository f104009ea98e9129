"""Does a model of fused blocks compute what the plain one does, with the same weights under the same names?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import run

from bench.models import TTTConfig, model_config
from bench.models.checkpoint import load, save
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock
from tests.interpreter import DEVICE

# Relative error of logits against float64, as in test_models.py.
LIMIT = {torch.float32: 2e-5, torch.bfloat16: 5e-2}

pytestmark = pytest.mark.usefixtures("triton_kernels")
backbones = pytest.mark.parametrize("backbone", ["mamba", "transformer"])


def check_model(config: TTTConfig, plan: tuple[int, ...], dtype: torch.dtype) -> None:
    """A model of fused blocks against the plain one in float64, no weight at 0 or 1."""
    fused = from_seed(config, 0, DEVICE, dtype, block=FusedBlock)
    plain = from_seed(config, 0, DEVICE, torch.float64)
    generator = torch.Generator().manual_seed(1)
    for name, weight in fused.weights().items():
        weight += 0.1 * torch.randn(weight.shape, generator=generator).to(weight)
        plain.weights()[name].copy_(weight)
    ids = torch.randint(config.vocabulary, (2, sum(map(abs, plan))), generator=generator).to(DEVICE)
    expected = run(plain, ids, plan)
    error = float((run(fused, ids, plan) - expected).norm() / expected.norm())
    assert error <= LIMIT[dtype]  # NaN fails too


@backbones
@pytest.mark.parametrize("system", ["ttt-linear", "ttt-mlp"])
def test_a_model_of_fused_blocks(system: str, backbone: str) -> None:
    check_model(model_config(system, "tiny", backbone=backbone), (1, 2, 14, -2), torch.float32)


@backbones
def test_packed_weights_keep_their_names_and_values(backbone: str) -> None:
    config = model_config("ttt-linear", "tiny", backbone=backbone)
    fused, plain = (from_seed(config, 0, "cpu", torch.float32, **options) for options in ({"block": FusedBlock}, {}))
    assert list(fused.weights()) == list(plain.weights())
    assert all(torch.equal(weight, plain.weights()[name]) for name, weight in fused.weights().items())


@backbones
def test_packed_weights_are_saved_and_loaded(backbone: str, tmp_path: Any) -> None:
    config = model_config("ttt-linear", "tiny", backbone=backbone)
    saved = from_seed(config, 3, "cpu", torch.float32, block=FusedBlock)
    save(saved, tmp_path / "model.safetensors")
    again = load(config, tmp_path / "model.safetensors", "cpu", torch.float32, block=FusedBlock)
    assert all(torch.equal(weight, again.weights()[name]) for name, weight in saved.weights().items())


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", LIMIT)
def test_a_model_on_a_gpu(dtype: torch.dtype) -> None:
    for system in ("ttt-linear", "ttt-mlp"):
        check_model(model_config(system, "tiny"), (33, -3), dtype)


@pytest.mark.parametrize("heads", [2, 12, 16])
def test_rows_of_the_shared_product_start_where_kernels_can_read_16_bytes(heads: int) -> None:
    config = replace(model_config("ttt-linear", "tiny"), width=64 * heads, heads=heads, layers=1)
    block = FusedBlock(config, torch.device("cpu"), torch.bfloat16)
    projected = torch.nn.functional.linear(torch.ones(1, config.width, dtype=torch.bfloat16), block._projections)
    assert projected.stride(0) % 8 == 0
    assert projected[..., block._rate_rows()].shape == (1, heads)
