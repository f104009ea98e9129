"""The Transformer gives the same logits on every attention package."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from bench.models.config import model_config
from bench.models.transformer import Transformer
from bench.systems.transformer import attention
from bench.systems.transformer.attention import (
    Attend,
    FlashAttention,
    FlashAttentionCute,
    FlashAttentionOfVllm,
    FlashTransformer,
)
from bench.systems.transformer.pytorch import TorchTransformer
from harness.measure.measured_case import CaseRun
from harness.schema.case import Case
from harness.schema.policy import Policy

BATCH, PROMPT, STEPS = 3, 21, 4


def flash_attn_func(q, k, v, causal=False):
    """Compute attention on [B, T, H, D], with the signature that every package has."""
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, enable_gqa=True)
    return out.transpose(1, 2)


def flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens, causal):
    rows = [
        flash_attn_func(q[b : b + 1], k_cache[b : b + 1, :n], v_cache[b : b + 1, :n])
        for b, n in enumerate(cache_seqlens.tolist())
    ]
    return torch.cat(rows)


def flash_attn_varlen_func(q, k, v, *, cu_seqlens_q, causal, fa_version, cu_seqlens_k=None, block_table=None, **rest):
    """Compute attention of concatenated prompts, or of single queries over a table's pages [page, tokens, H, D]."""
    assert causal
    assert fa_version == 3
    ends = cu_seqlens_q.tolist()
    pieces = [slice(a, b) for a, b in pairwise(ends)]
    if block_table is None:
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        return torch.cat([flash_attn_func(q[None, p], k[None, p], v[None, p], causal=True)[0] for p in pieces])
    assert rest["max_seqlen_k"] >= int(rest["seqused_k"].max())
    pages, used = block_table[:, 0].tolist(), rest["seqused_k"].tolist()
    return torch.cat(
        [
            flash_attn_func(q[None, p], k[None, page, :n], v[None, page, :n])[0]
            for p, page, n in zip(pieces, pages, used, strict=True)
        ]
    )


with_cache = SimpleNamespace(
    flash_attn_func=lambda *a, **k: (flash_attn_func(*a, **k), None), flash_attn_with_kvcache=flash_attn_with_kvcache
)
ATTENTIONS = {
    "choice": Attend(),
    "flash_attn": FlashAttention(with_cache, "flash_attn"),
    "cute": FlashAttentionCute(SimpleNamespace(flash_attn_func=flash_attn_func), "flash_attn.cute"),
    "vllm": FlashAttentionOfVllm(SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func), "vllm"),
}


@torch.inference_mode()
def logits_of(model, ids):
    logits, state = model.prefill(ids[:, :PROMPT], model.init_state(BATCH, PROMPT + STEPS))
    rows = [logits]
    for column in range(PROMPT, PROMPT + STEPS):
        rows.append(model.generate_step(ids[:, column], state)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("name", ATTENTIONS)
@pytest.mark.parametrize("kv_heads", [8, 2])
def test_prefill_and_steps_are_the_transformers(name, kv_heads):
    config = replace(model_config("transformer", "tiny"), heads=8, kv_heads=kv_heads)
    ids = torch.randint(0, config.vocabulary, (BATCH, PROMPT + STEPS))
    model = FlashTransformer.from_seed(config, 0, "cpu", torch.float32, attend=ATTENTIONS[name])
    model.prefill_tokens = 2 * PROMPT  # two sequences, then one
    expected = logits_of(Transformer.from_seed(config, 0, "cpu", torch.float32), ids)
    torch.testing.assert_close(logits_of(model, ids), expected, rtol=1e-4, atol=1e-5)


def test_a_prompt_that_continues_a_state():
    config = model_config("transformer", "tiny")
    ids = torch.randint(0, config.vocabulary, (BATCH, PROMPT))
    model = FlashTransformer.from_seed(config, 0, "cpu", torch.float32, attend=ATTENTIONS["vllm"])
    whole, _ = model.prefill(ids, model.init_state(BATCH, PROMPT))
    _, state = model.prefill(ids[:, :9], model.init_state(BATCH, PROMPT))
    torch.testing.assert_close(model.prefill(ids[:, 9:], state)[0], whole, rtol=1e-4, atol=1e-5)


def test_a_prompt_longer_than_its_state_is_an_error():
    model = FlashTransformer.from_seed(model_config("transformer", "tiny"), 0, "cpu", torch.float32)
    with pytest.raises(ValueError, match="70 tokens: the state holds 64"):
        model.prefill(torch.zeros(1, 70, dtype=torch.int64), model.init_state(1, 64))


def test_the_first_package_that_can_be_imported_is_used(monkeypatch):
    present = {"flash_attn", "vllm.vllm_flash_attn"}
    monkeypatch.setattr(attention, "cannot_import", lambda name: "" if name in present else "no")
    assert attention.flash_package() == "vllm.vllm_flash_attn"
    monkeypatch.setattr(attention.importlib, "import_module", lambda name: SimpleNamespace(name=name))
    assert isinstance(attention.flash_attention(), FlashAttentionOfVllm)
    present.discard("vllm.vllm_flash_attn")
    assert attention.flash_attention().name == "flash_attn"


def test_without_any_package_the_reason_is_that_of_each(monkeypatch):
    monkeypatch.setattr(attention, "PACKAGES", ("no_flash_here", "nor_here"))
    monkeypatch.setattr(attention, "no_gpu", lambda: "")
    reason = attention.FlashAttn().unavailable()
    for name in ("no_flash_here", "nor_here"):
        assert f"{name} cannot be imported: No module named '{name}'" in reason


def test_the_record_says_which_attention_the_steps_use():
    class Cute(attention.AttentionBackend):
        def attend(self):
            return ATTENTIONS["cute"]

    def settings(phase):
        return Cute().settings(Case("transformer", "flash-attn", "tiny", phase, 1, 8))

    assert settings("forward") == {"attention": "flash_attn.cute"}
    assert settings("generate") == {"attention": "SDPA's choice under a mask"}
    assert TorchTransformer().settings(Case("transformer", "torch", "tiny", "forward", 1, 8)) == {
        "attention": "SDPA's choice"
    }


class OnCpu(attention.AttentionBackend):
    """An attention that needs no GPU."""

    def attend(self):
        return ATTENTIONS["vllm"]


@pytest.mark.parametrize("system", ["transformer", "transformer-gqa"])
@pytest.mark.parametrize(("phase", "options"), [("forward", ()), ("generate", ()), ("request", (("steps", 3),))])
def test_what_is_timed_is_compared_with_the_transformer(system, phase, options):
    case = Case(system, "flash-attn", "tiny", phase, 3, 40, dtype="float32", options=options)
    record = CaseRun(case, Policy(min_samples=2, budget_s=0)).record(OnCpu())
    assert record.status == "ok", record.reason
    assert "unchecked" not in record.gate
    assert any(check["name"] == "timed_logits_relative_error" for check in record.gate["checks"])
