"""The reference gives the same logits and states with CUDA graphs as without, wherever prompts begin and end."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bench.models.config import TTTConfig
from bench.models.factory import from_seed
from bench.models.operator import TorchOperator
from bench.systems.ttt import replayed
from bench.systems.ttt.replayed import ReplayedOperator

LIMITS = {"cpu": 1e-12, "cuda": 1e-10}  # relative errors of float64

devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def through(operator: Any, prompts: list[int], learner: str, mini_batch: int, device: str) -> list[Tensor]:
    config = TTTConfig(learner, 128, 96, 3, 2, vocabulary=512, base_lr=1.0, mini_batch=mini_batch)
    model = from_seed(config, 0, device, torch.float64, operator=operator)
    rng = torch.Generator().manual_seed(1)
    for name, weight in model.weights().items():  # so that no two layers are alike
        if "learnable" in name or "norm" in name:
            noise = 0.1 * torch.rand(weight.shape, generator=rng, dtype=weight.dtype)
            weight.copy_(weight + noise.to(device))
    ids = torch.randint(0, 512, (2, sum(prompts)), generator=rng).to(device)
    state = model.init_state(*ids.shape)
    found = [model.prefill(part, state)[0].clone() for part in ids.split(prompts, dim=1)]
    return [*found, *(x for layer in state.layers for x in layer.inner)]


@devices
@pytest.mark.parametrize("learner", ["linear", "mlp"])
@pytest.mark.parametrize("mini_batch", [16, 96])
@pytest.mark.parametrize("prompts", [[160], [192, 128, 5], [3, 197]], ids=str)
def test_replays_are_the_reference(
    learner: str, mini_batch: int, prompts: list[int], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "PIECE_TOKENS", 79)  # whole mini-batches: 64 or 96
    with torch.no_grad():
        got = through(ReplayedOperator(learner), prompts, learner, mini_batch, device)
        expected = through(TorchOperator(learner), prompts, learner, mini_batch, device)
    for one, other in zip(got, expected, strict=True):
        assert (one - other).abs().amax() <= LIMITS[device] * other.abs().amax().clamp_min(1)


def test_whole_pieces_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """192 tokens replay a 64-token graph three times per layer; prompts that start inside a mini-batch use no graph."""
    pieces, made = [], []
    monkeypatch.setattr(replayed, "graph_replay", lambda step: made.append(1) or (lambda: pieces.append(1) or step()))
    monkeypatch.setattr(replayed, "PIECE_TOKENS", 64)
    with torch.no_grad():
        through(ReplayedOperator("linear"), [192, 5, 130], "linear", 16, "cpu")
    assert (len(pieces), len(made)) == (9, 1)
