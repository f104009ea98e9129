"""The Transformer baseline: Llama's blocks with PyTorch's attention and a KV cache.

Shapes: B sequences, T tokens per sequence, C = width of the model, H query heads of dimension D.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.base import ChunkedModel, Decoder
from bench.models.config import NORM_EPS, TransformerConfig
from bench.models.layers import SwiGLU, layer_range, linear, rotate_halves, round_up
from tk_kernels.reference.layer import Rotation, rotation

# Masked attention kernels copy the mask at each step unless the cache's capacity is a multiple of this.
CAPACITY_MULTIPLE = 64


@dataclass
class TransformerState:
    """The KV cache of B sequences, all with the same number of cached tokens.

    cache [layers, 2, B, KV heads, capacity, D]: keys, then values.
    position [1] int64: the number of cached tokens, on the device.
    length: the same number on the host; None if unknown. A generate step sets it to None.
    """

    cache: Tensor
    position: Tensor
    length: int | None = 0

    @property
    def batch(self) -> int:
        return self.cache.shape[2]

    @property
    def capacity(self) -> int:
        return self.cache.shape[4]

    def rows(self, rows: slice) -> "TransformerState":
        if self.length is None:
            self.length = int(self.position)
        return TransformerState(self.cache[:, :, rows], self.position, self.length)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
    """Return the causal attention [B, H, T, D] of q to keys k and values v.

    q [B, H, T, D]; k, v [B, KV heads, S, D]. mask: required if S > T; None is the plain causal mask.
    """
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)


# Causal attention [B, H, T, D] of q to k, v [B, KV heads, T, D] and to earlier tokens.
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attention(nn.Module):
    def __init__(self, config: TransformerConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.q_proj = linear(config.width, config.width, device, dtype)
        self.k_proj = linear(config.width, config.kv_width, device, dtype)
        self.v_proj = linear(config.width, config.kv_width, device, dtype)
        self.o_proj = linear(config.width, config.width, device, dtype)

    def forward(self, x: Tensor, rope: Rotation, attend: Attend) -> Tensor:
        """Map x [B, T, C] to the output [B, T, C]; `attend` may add attention to cached tokens."""
        q, k, v = (p(x).unflatten(-1, (-1, self.config.head_dim)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (x.transpose(1, 2) for x in (rotate_halves(q, rope), rotate_halves(k, rope), v))
        return self.o_proj(attend(q, k, v).transpose(1, 2).flatten(-2))


class TransformerBlock(nn.Module):
    def __init__(self, config: TransformerConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.width, NORM_EPS, device=device, dtype=dtype)
        self.self_attn = Attention(config, device, dtype)
        self.post_attention_layernorm = nn.RMSNorm(config.width, NORM_EPS, device=device, dtype=dtype)
        self.mlp = SwiGLU(config.width, config.ffn_width, device, dtype)

    def forward(self, h: Tensor, rope: Rotation, attend: Attend) -> Tensor:
        h = h + self.self_attn(self.input_layernorm(h), rope, attend)
        return h + self.mlp(self.post_attention_layernorm(h))


class Transformer(ChunkedModel):
    """A Llama-like Transformer with the parameter names of Hugging Face's Llama.

    All sequences of a batch have the same position. A step attends to the cache's whole capacity under a mask, which
    keeps shapes static. A longer context in `init_state` therefore makes every step slower.
    """

    def __init__(self, config: TransformerConfig, device: torch.device | str, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        device = torch.device(device)
        blocks: list[nn.Module] = [TransformerBlock(config, device, dtype) for _ in range(config.layers)]
        self.model = Decoder(config.vocabulary, config.width, blocks, device, dtype)

    def init_state(self, batch: int, context: int) -> TransformerState:
        """Return an empty state; its capacity is `context` rounded up to a multiple of 64 tokens."""
        capacity = round_up(context, CAPACITY_MULTIPLE)
        shape = (self.config.layers, 2, batch, self.config.kv_heads, capacity, self.config.head_dim)
        # Zeros, because a masked row has weight 0, and 0 times NaN is NaN.
        cache = torch.zeros(shape, device=self.device, dtype=self.dtype)
        return TransformerState(cache, torch.zeros(1, device=self.device, dtype=torch.int64))

    def reset_state(self, state: TransformerState) -> None:
        state.position.zero_()  # the mask hides old tokens in the cache
        state.length = 0

    def run_block(self, block: nn.Module, h: Tensor) -> Tensor:
        return block(h, self._rope(torch.arange(h.shape[1], device=h.device)), causal_attention)

    def _hidden(self, ids: Tensor, state: TransformerState) -> Tensor:
        start = int(state.position) if state.length is None else state.length
        end = start + ids.shape[1]
        if end > state.capacity:
            raise ValueError(f"{end} tokens: the state holds {state.capacity}; give init_state a longer context")
        h, rope = self.model.embed_tokens(ids), self._rope(torch.arange(start, end, device=ids.device))
        for index, block in enumerate(self.model.layers):
            with layer_range(index):
                h = block(h, rope, partial(self._attend_prompt, state.cache[index], start))
        state.position.fill_(end)
        state.length = end
        return h

    def _hidden_step(self, ids: Tensor, state: TransformerState) -> Tensor:
        mask = (torch.arange(state.capacity, device=ids.device) <= state.position)[None]  # [1, capacity]
        h, rope = self.model.embed_tokens(ids), self._rope(state.position)
        for index, block in enumerate(self.model.layers):
            with layer_range(index):
                h = block(h, rope, partial(self._attend_step, state.cache[index], state.position, mask))
        state.position.add_(1)
        state.length = None
        return h

    def _attend_prompt(self, cache: Tensor, start: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        end = start + q.shape[2]
        cache[0, :, :, start:end], cache[1, :, :, start:end] = k, v
        if start == 0:
            return causal_attention(q, k, v)
        from torch.nn.attention.bias import causal_lower_right  # slow to import

        mask = causal_lower_right(q.shape[2], end)
        return causal_attention(q, cache[0, :, :, :end], cache[1, :, :, :end], mask)

    def _attend_step(self, cache: Tensor, position: Tensor, mask: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        cache[0].index_copy_(2, position, k)
        cache[1].index_copy_(2, position, v)
        # SDPA's masked kernels have no GQA, so query heads that share a KV head are passed as tokens of one query head.
        rows = q.unflatten(1, (k.shape[1], -1)).squeeze(3)
        return F.scaled_dot_product_attention(rows, cache[0], cache[1], attn_mask=mask).flatten(1, 2).unsqueeze(2)

    def _rope(self, position: Tensor) -> Rotation:
        return rotation(position, self.config.head_dim, self.dtype)
