"""Generate steps give bitwise the same results with programmatic dependent launches as with plain launches."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from bench.models import fused
from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator

STEPS, REPLAYS = 20, 30  # more steps than a mini-batch; many replays, because a race need not show every time

pytestmark = pytest.mark.gpu


def stepped(model: Any, first: torch.Tensor) -> list[torch.Tensor]:
    state = model.init_generate_state(len(first))

    def steps() -> torch.Tensor:
        ids, logits = first, []
        for _ in range(STEPS):
            found, _ = model.generate_step(ids, state)
            ids = found.argmax(-1)
            logits.append(found)
        return torch.stack(logits)

    before = [x.clone() for x in tensors_of(state)]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        steps()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = steps()
    every = []
    for _ in range(REPLAYS):
        for x, was in zip(tensors_of(state), before, strict=True):
            x.copy_(was)
        graph.replay()
        every.append(logits.clone())
    return [*every, *(x.clone() for x in tensors_of(state))]


def tensors_of(state: Any) -> list[torch.Tensor]:
    caches = [cache for layer in state.layers for cache in (layer.block_conv, layer.qk_conv) if cache is not None]
    return [*caches, *(x for layer in state.layers for x in layer.inner.tensors())]


def model_of(learner: str, backbone: str = "mamba") -> Any:
    config = model_config(f"ttt-{learner}", "tiny", backbone=backbone)
    config = replace(config, width=2048, heads=32, layers=3, ffn_width=5504)
    operator = KernelOperator(learner, forward_in_pytorch=True)
    model = from_seed(config, 0, "cuda", torch.bfloat16, operator=operator, block=FusedBlock)
    if not fused.fits(torch.empty(1, 1, 2048, device="cuda", dtype=torch.bfloat16), model.head):
        pytest.skip("this GPU does not run the project's few-row GEMMs")
    return model


@pytest.fixture
def dependent(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    found: list[bool] = []
    enter = FusedBlock._enter

    def entered(block: FusedBlock, h: torch.Tensor, state: Any, pdl: bool) -> Any:
        found.append(pdl)
        return enter(block, h, state, pdl)

    monkeypatch.setattr(FusedBlock, "_enter", entered)
    return found


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 16, 40])
@pytest.mark.parametrize(("learner", "backbone"), [("linear", "mamba"), ("mlp", "mamba"), ("linear", "transformer")])
def test_steps_on_a_gpu(
    learner: str, backbone: str, batch: int, dependent: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(learner, backbone)
    first = torch.randint(model.config.vocabulary, (batch,), device="cuda")
    monkeypatch.setattr(fused, "pdl_is_faster", lambda *_: True)
    with torch.inference_mode():
        found = stepped(model, first)
        assert dependent == [False] * 3 + [True] * (len(dependent) - 3), "only the first step has new parameters"
        monkeypatch.setattr(fused, "pdl_is_faster", lambda *_: False)
        plain = stepped(model, first)
    assert not dependent[-1]
    assert all(map(torch.equal, found, plain))


@pytest.mark.parametrize("names", ["learnable_t", "norm.weight|conv|o_proj|down_proj|ln_"])
def test_parameters_that_change_between_steps_on_a_gpu(
    names: str, dependent: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("linear")
    first = torch.randint(model.config.vocabulary, (1,), device="cuda")
    changing = [each for name, each in model.weights().items() if re.search(names, name)]
    originals = [each.clone() for each in changing]

    def steps() -> list[torch.Tensor]:
        for each, original in zip(changing, originals, strict=True):
            each.copy_(original)
        state, found = model.init_generate_state(1), []
        for step in range(STEPS):
            found.append(model.generate_step(first, state)[0].clone())
            for each in changing:
                each.mul_(1.25 if step % 2 else 0.8)
        return found

    with torch.no_grad():  # inference mode does not count versions of parameters
        found = steps()
        repacked = names == "learnable_t"  # a block derives weights from these in the step
        assert dependent == [False] * 3 + [not repacked] * (len(dependent) - 3)
        monkeypatch.setattr(fused, "pdl_is_faster", lambda *_: False)
        assert all(map(torch.equal, found, steps()))
