"""Prompt chunks overlapped on two CUDA streams give bitwise the result of sequential chunks."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch

from bench.models import overlap as overlap_module
from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from bench.models.ttt import TTTModel

TOKENS, CHUNK = 80, 16


class FakeStream:
    def __init__(self, name: str, log: list[tuple]) -> None:
        self.name, self.log = name, log

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append((self.name, "waits for", other.name))

    def wait_event(self, event: int) -> None:
        self.log.append((self.name, "waits for", event))

    def record_event(self) -> int:
        self.log.append((self.name, "event", len(self.log)))
        return len(self.log) - 1


@pytest.fixture
def log(monkeypatch) -> list[tuple]:
    entries: list[tuple] = []
    caller, *pair = (FakeStream(name, entries) for name in ("caller", "first", "second"))

    @contextmanager
    def current(stream: FakeStream) -> Any:
        entries.append((stream.name, "begins", None))
        yield
        entries.append((stream.name, "ends", None))

    monkeypatch.setattr(overlap_module, "_streams", lambda device: tuple(pair))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: caller)
    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(TTTModel, "_leaves_sms_idle", lambda self, batch: True)
    monkeypatch.setattr(TTTModel, "overlapped_tokens", CHUNK)
    return entries


def prefilled(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    state = model.init_state(len(ids))
    logits, _ = model.prefill(ids, state)
    caches = [cache for layer in state.layers for cache in (layer.block_conv, layer.qk_conv, *layer.inner)]
    return [logits, *(cache for cache in caches if cache is not None)]


def test_chunks_enter_a_layer_in_their_order_and_the_caller_waits_for_all(log, monkeypatch) -> None:
    config = model_config("ttt-linear", "tiny")
    model = from_seed(config, 0, "cpu", torch.float64)
    ids = torch.randint(config.vocabulary, (1, TOKENS))
    overlapped = prefilled(model, ids)
    chunks, layers = TOKENS // CHUNK, config.layers
    assert log[:2] == [("first", "waits for", "caller"), ("second", "waits for", "caller")]
    assert log[-2:] == [("caller", "waits for", "first"), ("caller", "waits for", "second")]
    streams = [name for name, does, _ in log if does == "begins"]
    assert streams == (["first", "second"] * chunks)[:chunks]
    left: dict[int, int] = {}  # the event of a layer
    layer = -1
    for at, (name, does, what) in enumerate(log[2:-2], start=2):
        if does == "begins":
            layer, waited = 0, {}
        elif does == "waits for":
            waited = {layer: what}
        elif does == "event":
            assert waited.get(layer) == left.get(layer), (at, name)
            left[layer] = what
            layer, waited = layer + 1, {}
        else:
            assert layer == layers
    monkeypatch.setattr(TTTModel, "_leaves_sms_idle", lambda self, batch: False)
    model.chunk_tokens = CHUNK
    assert all(map(torch.equal, overlapped, prefilled(model, ids)))


@pytest.mark.parametrize(("heads", "batch", "idle"), [(32, 2, True), (32, 3, False), (12, 5, True), (16, 5, False)])
def test_half_of_the_sms_must_be_idle(heads: int, batch: int, idle: bool, monkeypatch) -> None:
    model = from_seed(model_config("ttt-linear", "tiny"), 0, "cpu", torch.float32)
    assert not model._leaves_sms_idle(1)  # no GPU
    monkeypatch.setattr(TTTModel, "device", torch.device("cuda:0"))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: type("", (), {"multi_processor_count": 132})
    )
    model.config = replace(model.config, heads=heads, width=heads * model.config.head_dim)
    assert not model._leaves_sms_idle(batch)  # PyTorch's operator is not a kernel
    model.operator.one_block_per_head = True
    assert model._leaves_sms_idle(batch) == idle


@pytest.mark.gpu
@pytest.mark.parametrize("learner", ["linear", "mlp"])
@pytest.mark.parametrize("backbone", ["mamba", "transformer"])
def test_overlapped_chunks_on_a_gpu_are_bitwise_sequential_chunks(learner: str, backbone: str, monkeypatch) -> None:
    config = replace(
        model_config(f"ttt-{learner}", "tiny", backbone=backbone), width=256, heads=4, layers=6, ffn_width=768
    )
    reason = import_module(f"tk_kernels.ttt_{learner}.ops").available()
    if reason:  # another GPU, or nothing to build the kernels with
        pytest.skip(reason)
    operator = KernelOperator(learner)
    model = from_seed(config, 0, "cuda", torch.bfloat16, operator=operator, block=FusedBlock)
    monkeypatch.setattr(TTTModel, "overlapped_tokens", 2048)
    ids = torch.randint(config.vocabulary, (2, 9 * 1024 + 37), device="cuda")
    assert model._leaves_sms_idle(2)
    attempts = [prefilled(model, ids) for _ in range(5)]
    monkeypatch.setattr(TTTModel, "_leaves_sms_idle", lambda self, batch: False)
    model.chunk_tokens = 2048
    expected = prefilled(model, ids)
    for found in attempts:
        assert all(map(torch.equal, found, expected))


def test_is_overlapped_inside_a_chunk_only(log) -> None:
    overlap = overlap_module.Overlap(torch.device("cpu"))
    assert not overlap_module.is_overlapped()
    with overlap.chunk():
        assert overlap_module.is_overlapped()
    assert not overlap_module.is_overlapped()


@pytest.mark.parametrize(("tokens", "chunks"), [(CHUNK, 0), (15 * CHUNK, 15), (16 * CHUNK, 8), (20 * CHUNK, 10)])
def test_a_long_prompt_goes_in_chunks_of_twice_the_length(log, tokens: int, chunks: int) -> None:
    model = from_seed(model_config("ttt-linear", "tiny"), 0, "cpu", torch.float32)
    ids = torch.zeros(1, tokens, dtype=torch.long)
    model.prefill(ids, model.init_state(1, tokens))
    assert sum(what == "begins" for _, what, _ in log) == chunks
