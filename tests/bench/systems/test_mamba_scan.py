"""The chunked scans equal sequential recurrences in float64, with and without an incomplete last chunk."""

import pytest
import torch

from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.systems.mamba import scan
from bench.systems.mamba.scan import ScannedMamba, ScannedMamba2, selective_scan
from harness.measure.correctness import relative_error


@pytest.mark.parametrize("tokens", [1, 2, 3, 16, 17, 100])
def test_the_scan_is_the_recurrence(tokens):
    decay, inputs = torch.rand(2, tokens, 5, 3).double(), torch.randn(2, tokens, 5, 3).double()
    state = torch.randn(2, 5, 3).double()
    expected, x = [], state
    for t in range(tokens):
        x = decay[:, t] * x + inputs[:, t]
        expected.append(x)
    found = selective_scan(decay.clone(), inputs.clone(), state)
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-12, atol=1e-12)


@torch.inference_mode()
def test_a_prompt_through_the_chunked_scan_is_transformers_mamba(monkeypatch):
    config = model_config("mamba", "tiny")
    model = from_seed(config, 0, "cpu", torch.float64)
    ids = torch.randint(0, config.vocabulary, (2, 75))
    expected, _ = model.prefill(ids, model.init_state(2))
    # In three pieces; transformers' norms and decays are in float32 whatever the model's type.
    monkeypatch.setattr(scan, "PIECE_NUMBERS", 2 * 30 * config.inner_width * config.state_dim)
    found, _ = ScannedMamba(model.inner, "cpu").prefill(ids, None)
    assert relative_error(found, expected) < 1e-6


@torch.inference_mode()
def test_a_prompt_through_the_chunked_scan_is_transformers_mamba2(monkeypatch):
    from transformers import Mamba2Config, Mamba2ForCausalLM

    torch.manual_seed(0)
    config = Mamba2Config(vocab_size=50, hidden_size=32, num_hidden_layers=2, expand=2, state_size=8, head_dim=16,
                          num_heads=4, n_groups=2, chunk_size=16, tie_word_embeddings=True)  # fmt: skip
    inner = Mamba2ForCausalLM(config).eval().double()
    for layer in inner.backbone.layers:
        torch.nn.init.normal_(layer.mixer.dt_bias)
    ids = torch.randint(0, 50, (2, 150))
    monkeypatch.setattr(scan, "PIECE_NUMBERS", 2 * 80 * 64 * 8)
    expected = inner(ids, use_cache=False).logits
    for layer in inner.backbone.layers:
        del layer.mixer.norm.group_size  # transformers before 5.23 have none
    found = ScannedMamba2(inner, "cpu").logits(ids, 3)
    assert relative_error(found, expected[:, -3:]) < 1e-6
