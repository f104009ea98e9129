"""Run this repository's Transformer on the FlashAttention that is installed."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.models.config import TransformerConfig, model_config
from bench.models.layers import Rotation, layer_range
from bench.models.transformer import Transformer, TransformerState, causal_attention, step_attention
from bench.systems.needs import cannot_import, no_gpu
from bench.systems.on_device import device
from bench.systems.transformer.pytorch import TorchTransformer
from harness.schema.case import Case

# In order of preference: the newest for this GPU first. vLLM's wheel includes FlashAttention 3.
PACKAGES = ("flash_attn_interface", "flash_attn.cute", "vllm.vllm_flash_attn", "flash_attn")


class Attend:
    """Attention by SDPA in the model's layout, [B, heads, T, D]; a subclass replaces that of prompts, steps or both."""

    name = "SDPA's choice"
    step_name = "SDPA's choice under a mask"

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return causal attention over whole prompts, [B, H, T, D]."""
        return causal_attention(q, k, v)

    def step(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
        """Return attention of q [B, H, 1, D] over the rows 0 to `position` of the caches [B, KV heads, capacity, D].

        position: [1], on the device.
        """
        mask = (torch.arange(k_cache.shape[2], device=q.device) <= position)[None]
        return step_attention(q, k_cache, v_cache, mask)


class FlashAttention(Attend):
    """FlashAttention 2 or 3: flash_attn_func for prompts, flash_attn_with_kvcache for steps."""

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name, self.step_name = module, name, name

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return _first(self.module.flash_attn_func(q, k, v, causal=True)).transpose(1, 2)

    def step(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k_cache, v_cache))
        lengths = _lengths(position, q.shape[0])
        return _first(self.module.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, causal=True)).transpose(1, 2)


class FlashAttentionCute(FlashAttention):
    """FlashAttention 4 for prompts; it has no function for a KV cache, so SDPA runs the steps."""

    def __init__(self, module: Any, name: str) -> None:
        super().__init__(module, name)
        self.step_name = Attend.step_name

    def step(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
        return Attend.step(self, q, k_cache, v_cache, position)


class FlashAttentionOfVllm(FlashAttention):
    """The FlashAttention 3 in vLLM's wheel, which has only flash_attn_varlen_func.

    Prompts are concatenated; in a step each sequence's cache is one page of its block table.
    """

    version = 3

    def __init__(self, module: Any, name: str) -> None:
        super().__init__(module, f"{name} {self.version}")

    def prefill(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, _, tokens, _ = q.shape
        ends = torch.arange(0, (batch + 1) * tokens, tokens, dtype=torch.int32, device=q.device)
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
        out = self._varlen(q, k, v, max_seqlen_q=tokens, max_seqlen_k=tokens, cu_seqlens_q=ends, cu_seqlens_k=ends)
        return out.unflatten(0, (batch, tokens)).transpose(1, 2)

    def step(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, position: Tensor) -> Tensor:
        sequences = torch.arange(q.shape[0] + 1, dtype=torch.int32, device=q.device)
        out = self._varlen(
            q[:, :, 0],
            k_cache.transpose(1, 2),
            v_cache.transpose(1, 2),
            max_seqlen_q=1,
            max_seqlen_k=k_cache.shape[2],
            cu_seqlens_q=sequences,
            seqused_k=_lengths(position, q.shape[0]),
            block_table=sequences[:-1, None],
        )
        return out[:, :, None]

    def _varlen(self, q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
        return _first(self.module.flash_attn_varlen_func(q, k, v, causal=True, fa_version=self.version, **arguments))


def _lengths(position: Tensor, batch: int) -> Tensor:
    """Return the cache rows of each sequence, including the new token's: [B] int32."""
    return (position + 1).to(torch.int32).expand(batch).contiguous()


def _first(out: Any) -> Tensor:
    """Return the output without the log-sum-exp, which some versions add to it."""
    return out[0] if isinstance(out, tuple) else out


def flash_package() -> str:
    """Return the first of PACKAGES that can be imported, or ""."""
    return next((name for name in PACKAGES if not cannot_import(name)), "")


def flash_attention() -> Attend:
    """Load the attention of `flash_package`."""
    name = flash_package()
    kinds = {"flash_attn.cute": FlashAttentionCute, "vllm.vllm_flash_attn": FlashAttentionOfVllm}
    return kinds.get(name, FlashAttention)(importlib.import_module(name), name)


class FlashTransformer(Transformer):
    """The Transformer on the attention `attend`."""

    def __init__(
        self, config: TransformerConfig, device: torch.device | str, dtype: torch.dtype, attend: Attend | None = None
    ) -> None:
        super().__init__(config, device, dtype)
        self.attend = attend or Attend()

    def _chunk_length(self, batch: int) -> int:
        """Return a length that no prompt exceeds, because these attention functions need the whole prompt."""
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


class AttentionBackend(TorchTransformer):
    """Adapter of the Transformer on one attention; its reference is the Transformer on SDPA."""

    def attend(self) -> Attend:
        """Return the attention of this backend."""
        raise NotImplementedError

    def unavailable(self) -> str:
        """Report a missing GPU, which these kernels need; "" if there is one."""
        return no_gpu()

    def settings(self, case: Case) -> dict[str, str]:
        """Record the attention of the prompt and, if different, of the steps."""
        attend = self.attend()
        prompt = [attend.name] if case.phase != "generate" else []
        steps = [attend.step_name] if case.phase != "forward" else []
        return {"attention": ", steps: ".join(dict.fromkeys([*prompt, *steps]))}

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


class FlashAttn(AttentionBackend):
    """Adapter of both Transformers on the FlashAttention that is installed."""

    packages = ("flash-attn-4", "flash-attn", "vllm")

    def unavailable(self) -> str:
        """Report a missing GPU, or why no package can be imported; "" if neither."""
        if (absent := no_gpu()) or flash_package():
            return absent
        return "no FlashAttention: " + "; ".join(dict.fromkeys(cannot_import(name) for name in PACKAGES))

    def attend(self) -> Attend:
        """Return the attention of the first installed package in PACKAGES."""
        return flash_attention()
