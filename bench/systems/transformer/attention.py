"""Run this repository's Transformer on the FlashAttention 3 in vLLM's wheel."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.models.config import TransformerConfig, model_config
from bench.models.layers import Rotation, layer_range
from bench.models.transformer import Transformer, TransformerState
from bench.systems.needs import cannot_import, no_gpu
from bench.systems.on_device import device
from bench.systems.transformer.pytorch import TorchTransformer
from harness.schema.case import Case

PACKAGE, VERSION = "vllm.vllm_flash_attn", 3


class FlashAttention:
    """Attention in the model's layout, [B, heads, T, D], by flash_attn_varlen_func, the package's only function.

    Prompts are concatenated; in a step each sequence's cache is one page of its block table.
    """

    def __init__(self, varlen: Callable[..., Any]) -> None:
        self._varlen = varlen

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return causal attention over whole prompts, [B, H, T, D]."""
        batch, _, tokens, _ = q.shape
        ends = torch.arange(0, (batch + 1) * tokens, tokens, dtype=torch.int32, device=q.device)
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        out = self._attend(q, k, v, max_seqlen_q=tokens, max_seqlen_k=tokens, cu_seqlens_q=ends, cu_seqlens_k=ends)
        return out.unflatten(0, (batch, tokens)).transpose(1, 2)

    def step(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
        """Return attention of q [B, H, 1, D] over the rows 0 to `position` of the caches [B, KV heads, capacity, D].

        position: [1], on the device.
        """
        sequences = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
        out = self._attend(
            q[:, :, 0],
            k_cache.transpose(1, 2),
            v_cache.transpose(1, 2),
            max_seqlen_q=1,
            max_seqlen_k=k_cache.shape[2],
            cu_seqlens_q=sequences,
            seqused_k=(position + 1).to(torch.int32).expand(q.shape[0]).contiguous(),
            block_table=sequences[:-1, None],
        )
        return out[:, :, None]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
        """Return the output without the log-sum-exp, which some versions add to it."""
        out = self._varlen(q, k, v, causal=True, fa_version=VERSION, **arguments)
        return out[0] if isinstance(out, tuple) else out


class FlashTransformer(Transformer):
    """The Transformer on FlashAttention."""

    def __init__(
        self, config: TransformerConfig, device: torch.device | str, dtype: torch.dtype, attend: FlashAttention
    ) -> None:
        super().__init__(config, device, dtype)
        self.attend = attend

    def _chunk_length(self, batch: int) -> int:
        """Return a length that no prompt exceeds, because FlashAttention needs the whole prompt."""
        return sys.maxsize

    def _hidden(self, ids: Tensor, state: TransformerState) -> Tensor:
        """Read a prompt by `attend` if the state is empty and has room; otherwise as the parent class does."""
        tokens = ids.shape[1]
        if state.length != 0 or tokens > state.capacity:
            return super()._hidden(ids, state)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            state.cache[layer, 0, :, :, :tokens], state.cache[layer, 1, :, :, :tokens] = k, v
            return self.attend.prefill(q, k, v)

        h = self._through_blocks(ids, self._rope(torch.arange(tokens, device=ids.device)), attend)
        state.position.fill_(tokens)
        state.length = tokens
        return h

    def _hidden_step(self, ids: Tensor, state: TransformerState) -> Tensor:
        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            for cache, row in zip(state.cache[layer], (k, v), strict=True):
                cache.index_copy_(2, state.position, row)
            return self.attend.step(q, state.cache[layer, 0], state.cache[layer, 1], state.position)

        h = self._through_blocks(ids, self._rope(state.position), attend)
        state.position.add_(1)
        state.length = None
        return h

    def _through_blocks(self, ids: Tensor, rope: Rotation, attend: Callable[..., Tensor]) -> Tensor:
        """Run all blocks: ids [B, T] -> the residual stream [B, T, C].

        attend(layer, q, k, v): callable that returns a layer's attention; q and k are rotated.
        """
        h = self.model.embed_tokens(ids)
        for layer, block in enumerate(self._blocks):
            with layer_range(layer):
                q, k, v = block.self_attn._project(block.input_layernorm(h), rope)
                h = h + block.self_attn._merge(attend(layer, q, k, v))
                h = h + block.mlp(block.post_attention_layernorm(h))
        return h


class FlashAttn(TorchTransformer):
    """Adapter of both Transformers on FlashAttention; their reference is the Transformer on SDPA."""

    packages = ("vllm",)

    def unavailable(self) -> str:
        """Report a missing GPU, or why the package cannot be imported; "" if neither."""
        return no_gpu() or cannot_import(PACKAGE)

    def settings(self, case: Case) -> dict[str, str]:
        """Record the attention."""
        return {"attention": f"{PACKAGE} {VERSION}"}

    def attend(self) -> FlashAttention:
        """Load the package's attention."""
        return FlashAttention(importlib.import_module(PACKAGE).flash_attn_varlen_func)

    def load(self, case: Case) -> FlashTransformer:
        """Load the model with random weights from a fixed seed."""
        config = model_config(case.system, case.size)
        assert isinstance(config, TransformerConfig)
        return FlashTransformer.from_seed(config, 0, device(), getattr(torch, case.dtype), attend=self.attend())

    def reference(self, model: FlashTransformer, dtype: torch.dtype) -> Transformer:
        """Return the same weights on SDPA in `dtype`."""
        reference = Transformer(model.config, device(), dtype)
        reference.copy_weights(model)
        return reference
