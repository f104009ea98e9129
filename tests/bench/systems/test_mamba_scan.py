"""The chunked scans equal sequential recurrences in float64, with and without an incomplete last chunk."""

import pytest
import torch

from bench.models.config import model_config
from bench.models.factory import from_seed
from bench.systems.mamba import scan
from bench.systems.mamba.scan import ScannedMamba, ScannedMamba2, selective_scan, state_space
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


@pytest.mark.parametrize("prompt", [0, 1, 7, 20])
def test_the_state_is_stored_in_bfloat16_after_the_prompt_and_after_each_step(monkeypatch, prompt):
    u, step = torch.randn(2, 20, 5).double(), torch.rand(2, 20, 5).double()
    A, B, C = -torch.rand(5, 3).double(), *torch.randn(2, 2, 20, 1, 3).double()
    x, expected = torch.zeros(2, 5, 3).double(), []
    for t in range(20):
        x = (step[:, t, :, None] * A).exp() * x + (step[:, t] * u[:, t])[..., None] * B[:, t]
        expected.append((x * C[:, t]).sum(-1))
        if t + 1 >= prompt:
            x = x.bfloat16().double()
    monkeypatch.setattr(scan, "PIECE_ELEMENTS", 2 * 3 * 5 * 3)  # pieces of three tokens
    found = state_space(u, step, A, B, C, torch.bfloat16, prompt)
    torch.testing.assert_close(found, torch.stack(expected, 1), rtol=1e-12, atol=1e-12)
    exact = state_space(u, step, A, B, C)
    assert relative_error(found, exact) > 1e-4 if prompt < 20 else torch.equal(found, exact)


@torch.inference_mode()
def test_a_prompt_through_the_chunked_scan_is_transformers_mamba(monkeypatch):
    config = model_config("mamba", "tiny")
    model = from_seed(config, 0, "cpu", torch.float64)
    ids = torch.randint(0, config.vocabulary, (2, 75))
    expected, _ = model.prefill(ids, model.init_state(2))
    # In three pieces; transformers' norms and decays are in float32 whatever the model's type.
    monkeypatch.setattr(scan, "PIECE_ELEMENTS", 2 * 30 * config.inner_width * config.state_dim)
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
    monkeypatch.setattr(scan, "PIECE_ELEMENTS", 2 * 80 * 64 * 8)
    expected = inner(ids, use_cache=False).logits
    for layer in inner.backbone.layers:
        del layer.mixer.norm.group_size  # transformers before 5.23 have none
    found = ScannedMamba2(inner, "cpu").logits(ids, 3)
    assert relative_error(found, expected[:, -3:]) < 1e-6
