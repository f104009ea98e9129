"""Run this repository's Transformer on FlashAttention 3 from vLLM's wheel."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.models.transformer import Sdpa, TransformerState
from bench.systems.needs import cannot_import, no_gpu
from bench.systems.transformer.pytorch import TorchTransformer
from harness.schema.case import Case

PACKAGE, VERSION = "vllm.vllm_flash_attn", 3


class FlashAttention(Sdpa):
    """A `Transformer`'s attention by flash_attn_varlen_func, on tensors [B, heads, T, D].

    Prompts are concatenated. In a generate step, each sequence's KV cache is one page of the block table.
    """

    whole_prompts = True

    def __init__(self, varlen: Callable[..., Any]) -> None:
        self._varlen = varlen

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, _, tokens, _ = q.shape
        ends = torch.arange(0, (batch + 1) * tokens, tokens, dtype=torch.int32, device=q.device)
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        out = self._attend(q, k, v, max_seqlen_q=tokens, max_seqlen_k=tokens, cu_seqlens_q=ends, cu_seqlens_k=ends)
        return out.unflatten(0, (batch, tokens)).transpose(1, 2)

    def mask(self, state: TransformerState) -> dict[str, Tensor]:
        """Return the kernel's arguments for a step: each sequence's first query, key count and page."""
        sequences = torch.arange(state.batch + 1, dtype=torch.int32, device=state.position.device)
        return {
            "cu_seqlens_q": sequences,
            "seqused_k": (state.position + 1).to(torch.int32).expand(state.batch).contiguous(),
            "block_table": sequences[:-1, None],
        }

    def step(self, q: Tensor, k: Tensor, v: Tensor, mask: dict[str, Tensor]) -> Tensor:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        out = self._attend(q[:, :, 0], k, v, max_seqlen_q=1, max_seqlen_k=k.shape[1], **mask)
        return out[:, :, None]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
        """Call FlashAttention; return the output without the log-sum-exp of some versions."""
        out = self._varlen(q, k, v, causal=True, fa_version=VERSION, **arguments)
        return out[0] if isinstance(out, tuple) else out


class FlashAttn(TorchTransformer):
    """Adapter of transformer/flash-attn and transformer-gqa/flash-attn, checked by SDPA."""

    packages = ("vllm",)

    def unavailable(self) -> str:
        return no_gpu() or cannot_import(PACKAGE)

    def settings(self, case: Case) -> dict[str, str]:
        return {"attention": f"{PACKAGE} {VERSION}"}

    def attend(self) -> FlashAttention:
        return FlashAttention(importlib.import_module(PACKAGE).flash_attn_varlen_func)
