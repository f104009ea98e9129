"""The Transformer gives the same logits on FlashAttention."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from bench.models.config import model_config
from bench.models.transformer import Transformer
from bench.systems.transformer import attention
from bench.systems.transformer.attention import FlashAttention
from harness.measure.measured_case import CaseRun
from harness.schema.case import Case
from harness.schema.policy import Policy

BATCH, PROMPT, STEPS = 3, 21, 4


def flash_attn_func(q, k, v, causal=False):
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, enable_gqa=True)
    return out.transpose(1, 2)


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


ATTENTION = FlashAttention(lambda *a, **k: (flash_attn_varlen_func(*a, **k), None))


@torch.inference_mode()
def logits_of(model, ids):
    logits, state = model.prefill(ids[:, :PROMPT], model.init_state(BATCH, PROMPT + STEPS))
    rows = [logits]
    for column in range(PROMPT, PROMPT + STEPS):
        rows.append(model.generate_step(ids[:, column], state)[0])
    return torch.stack(rows)


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_prefill_and_steps_are_the_transformers(kv_heads):
    config = replace(model_config("transformer", "tiny"), heads=8, kv_heads=kv_heads)
    ids = torch.randint(0, config.vocabulary, (BATCH, PROMPT + STEPS))
    model = Transformer.from_seed(config, 0, "cpu", torch.float32, attend=ATTENTION)
    model.prefill_tokens = 2 * PROMPT  # two sequences, then one
    expected = logits_of(Transformer.from_seed(config, 0, "cpu", torch.float32), ids)
    torch.testing.assert_close(logits_of(model, ids), expected, rtol=1e-4, atol=1e-5)


def test_all_layers_of_a_step_share_its_lengths():
    given = []
    attend = FlashAttention(lambda *a, **k: given.append(k) or flash_attn_varlen_func(*a, **k))
    config = model_config("transformer", "tiny")
    model = Transformer.from_seed(config, 0, "cpu", torch.float32, attend=attend)
    state = model.init_state(BATCH, PROMPT)
    model.generate_step(torch.zeros(BATCH, dtype=torch.int64), state)
    assert len(given) == config.layers > 1
    assert len({each["seqused_k"].data_ptr() for each in given}) == 1


class OnCpu(attention.FlashAttn):
    def attend(self):
        return ATTENTION


@pytest.mark.parametrize("system", ["transformer", "transformer-gqa"])
@pytest.mark.parametrize(("phase", "options"), [("forward", ()), ("generate", ()), ("request", (("steps", 3),))])
def test_what_is_timed_is_compared_with_the_transformer(system, phase, options):
    case = Case(system, "flash-attn", "tiny", phase, 3, 40, dtype="float32", options=options)
    record = CaseRun(case, Policy(min_samples=2, budget_s=0)).record(OnCpu())
    assert record.status == "ok", record.reason
    assert "unchecked" not in record.check
    assert any(check["name"] == "timed_logits_relative_error" for check in record.check["checks"])
