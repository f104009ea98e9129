"""TTT language models: arXiv 2407.04620, section 2 (the layer) and appendix (backbones).

A model is embedding, blocks, norm and head. A block is convolution ((M) only), TTT layer and SwiGLU; the TTT layer is
projections, an inner loop (`Operator`) and an output projection.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.base import ChunkedModel, Decoder
from bench.models.config import NORM_EPS, TTTConfig
from bench.models.layers import (
    CausalConv,
    RMSNorm,
    Rotation,
    SwiGLU,
    at_least_float32,
    empty_conv_cache,
    layer_range,
    linear,
    operator_range,
    parameter,
    rotation,
    slide,
)
from bench.models.operator import Learner, Operator, Projections, TorchOperator, rows_of
from bench.models.overlap import Overlap
from tk_kernels.reference.token_rows import overwrite


@dataclass
class LayerState:
    """The state of one block: the last convolution inputs [B, 3, C] ((M) only) and the operator's state.

    `qk_conv` holds outputs of the shared projection, which the convolutions of Q and of K both read. slots [B]: for
    `FusedBlock.generate_step`, indices of the sequences in tensors of more than B.
    """

    block_conv: Tensor | None
    qk_conv: Tensor | None
    inner: Any
    slots: Tensor | None = None

    def rows(self, rows: slice) -> "LayerState":
        """The state of some sequences, views of this one."""
        block_conv, qk_conv = (None if cache is None else cache[rows] for cache in (self.block_conv, self.qk_conv))
        return LayerState(block_conv, qk_conv, rows_of(self.inner, rows))


@dataclass
class WholeState:
    """All layers' convolution caches in one tensor, and the operator's states of all (`Operator.init_states`)."""

    caches: Tensor | None
    inner: Any


@dataclass
class TTTState:
    """The state of `batch` sequences; its size does not depend on their length.

    `length` is how many tokens each has seen, or None where the host does not know: generate_step sets it to None, and
    a caller that replays a CUDA graph of a step must do so too before the next prefill. `whole`: what the layers are
    views of, where they are.
    """

    batch: int
    layers: list[LayerState]
    length: int | None = 0
    whole: WholeState | None = None

    def rows(self, rows: slice) -> "TTTState":
        """The state of some sequences, whose tensors are views of this one's."""
        return TTTState(len(range(self.batch)[rows]), [layer.rows(rows) for layer in self.layers], self.length)


class BlockConv(nn.Module):
    """The Mamba backbone's first step: norm, then causal convolution."""

    def __init__(self, config: TTTConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = RMSNorm(config.width, device, dtype, config.norm_eps)
        self.conv = CausalConv(config.width, device, dtype)

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        return self.conv(slide(cache, self.norm(x)))


class TTTLayer(nn.Module):
    """Projections, convolutions, rotation and learning rate; the operator; norm, gate and output projection.

    Projections and norms are in `dtype`; the learner's parameters (W1, b1, ..., learnable_*, ttt_norm_*) in at least
    float32, because one mini-batch changes them by less than half an ulp of bfloat16.
    """

    def __init__(self, config: TTTConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        width, inner = config.width, at_least_float32(dtype)
        self.q_proj = linear(width, width, device, dtype)
        self.v_proj = linear(width, width, device, dtype)
        self.o_proj = linear(width, width, device, dtype)
        if config.backbone == "mamba":
            self.g_proj = linear(width, width, device, dtype)
            self.conv_q = CausalConv(width, device, dtype)
            self.conv_k = CausalConv(width, device, dtype)
        else:
            self.k_proj = linear(width, width, device, dtype)
        self.post_norm = nn.LayerNorm(width, eps=NORM_EPS, device=device, dtype=dtype)
        self._add_learner(config, device, inner)

    def _add_learner(self, config: TTTConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.learnable_token_idx = parameter((config.mini_batch,), device, dtype)
        self.learnable_ttt_lr_weight = parameter((config.heads, 1, config.width), device, dtype)
        self.learnable_ttt_lr_bias = parameter((config.heads, 1), device, dtype)
        self.ttt_norm_weight = parameter((config.heads, config.head_dim), device, dtype)
        self.ttt_norm_bias = parameter((config.heads, config.head_dim), device, dtype)
        for name, shape in config.weight_shapes.items():
            self.register_parameter(name, parameter(shape, device, dtype))
        index = torch.arange(1, config.mini_batch + 1, device=device, dtype=dtype)
        self.register_buffer("token_idx", 1.0 / index, persistent=False)

    def learner_weights(self) -> list[Tensor]:
        """The learner before the first token: W1, b1 and, of TTT-MLP, W2, b2."""
        return [self.get_parameter(name) for name in self.config.weight_shapes]

    def project(self, x: Tensor, state: LayerState) -> Projections:
        """The operator's inputs from x [B, T, C]; the convolution inputs in `state` move T tokens on."""
        q, k = self._query_and_key(x, state)
        return Projections(self._heads(q), self._heads(k), self._heads(self.v_proj(x)), self._lr_logits(x))

    def _query_and_key(self, x: Tensor, state: LayerState) -> tuple[Tensor, Tensor]:
        if state.qk_conv is None:
            return self.q_proj(x), self.k_proj(x)
        window = slide(state.qk_conv, self.q_proj(x))
        return self.conv_q(window), self.conv_k(window)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.heads, self.config.head_dim))

    def _lr_logits(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.learnable_ttt_lr_weight[:, 0].to(x.dtype))
        return product + self.learnable_ttt_lr_bias[:, 0]  # the sum is in the bias's dtype

    def learner(self, rope: Rotation) -> Learner:
        """The operator's parameters outside its state."""
        # s_i = max(0, 1/(i+1) + learnable_i)
        token_scale = torch.clamp_min(self.get_buffer("token_idx") + self.learnable_token_idx, 0.0)
        base_lr, theta = self.config.base_lr, self.config.rope_theta
        return Learner(token_scale, self.ttt_norm_weight, self.ttt_norm_bias, base_lr, rope, theta)

    def output(self, x: Tensor, out: Tensor) -> Tensor:
        """The operator's out [B, T, H, D] after norm, gate (from the layer's input x) and projection: [B, T, C]."""
        out = self.post_norm(out.flatten(-2))
        if self.config.backbone == "mamba":
            out = F.gelu(self.g_proj(x), approximate="tanh") * out
        return self.o_proj(out)


Learn = Callable[[Projections, Learner], Tensor]  # the operator bound to one layer's state -> out [B, T, H, D]


class TTTBlock(nn.Module):
    """Convolution ((M) only), TTT and SwiGLU, each after a norm and added to the residual stream."""

    def __init__(self, config: TTTConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        if config.backbone == "mamba":
            self.conv = BlockConv(config, device, dtype)
        self.seq_norm = RMSNorm(config.width, device, dtype, config.norm_eps)
        self.seq_modeling_block = TTTLayer(config, device, dtype)
        self.ffn_norm = RMSNorm(config.width, device, dtype, config.norm_eps)
        self.mlp = SwiGLU(config.width, config.ffn_width, device, dtype)

    def forward(self, h: Tensor, rope: Rotation, state: LayerState, operator: Operator, start: int | None) -> Tensor:
        """The residual stream [B, T, C] before -> after; `state` moves T tokens on.

        `start`: the state's position in its mini-batch, None where the host does not know it.
        """

        def learn(projections: Projections, learner: Learner) -> Tensor:
            with operator_range():
                return operator.forward(projections, learner, state.inner, start)

        return self._through(h, rope, state, learn)

    def generate_step(self, h: Tensor, rope: Rotation, state: LayerState, operator: Operator) -> Tensor:
        """The residual stream [B, 1, C] before -> after; `state` moves one token on."""

        def learn(projections: Projections, learner: Learner) -> Tensor:
            with operator_range():
                return operator.generate_step(projections.first(), learner, state.inner)[:, None]

        return self._through(h, rope, state, learn)

    def _through(self, h: Tensor, rope: Rotation, state: LayerState, learn: Learn) -> Tensor:
        """The block around the inner loop; `bench.models.fused` computes it in fewer passes over memory."""
        if state.block_conv is not None:
            h = h + self.conv(h, state.block_conv)
        layer, x = self.seq_modeling_block, self.seq_norm(h)
        h = h + layer.output(x, learn(layer.project(x, state), layer.learner(rope)))
        return h + self.mlp(self.ffn_norm(h))


def rope_tables(config: TTTConfig, device: torch.device, dtype: torch.dtype) -> Rotation:
    """cos and sin [m, D/2] of the positions in a mini-batch, in at least float32."""
    positions = torch.arange(config.mini_batch, device=device)
    cos, sin = (table.squeeze(-2) for table in rotation(positions, config.head_dim, dtype, config.rope_theta))
    return cos, sin


class TTTModel(ChunkedModel):
    """TTT-Linear or TTT-MLP with the (M) or (T) backbone; parameters bear the names of the authors' state dict.

    `operator` computes the inner loop; the default is the reference in its dual form. `block` computes what is around
    it: `TTTBlock` in plain PyTorch, `bench.models.fused.FusedBlock` with fused kernels.
    """

    # A kernel goes through a sequence with one block a head: of 32 heads, fewer sequences leave SMs of an H100 idle.
    least_group = 16
    # Of a chunk where two run at once: enough rows for a GPU's products, and two chunks of them early in a prompt.
    overlapped_tokens = 8192
    many_chunks = 16  # so many and more become half as many of twice the length: fewer ends to wait for

    def __init__(
        self,
        config: TTTConfig,
        device: torch.device | str,
        dtype: torch.dtype,
        operator: Operator | None = None,
        block: type[TTTBlock] = TTTBlock,
    ) -> None:
        super().__init__()
        self.config = config
        self.operator: Operator = operator or TorchOperator(config.learner)
        device = torch.device(device)
        blocks: list[nn.Module] = [block(config, device, dtype) for _ in range(config.layers)]
        self.model = Decoder(config.vocabulary, config.width, blocks, device, dtype, config.norm_eps)
        if not config.tied:
            self.lm_head = linear(config.width, config.vocabulary, device, dtype)
        cos, sin = rope_tables(config, device, dtype)
        self.register_buffer("rope_cos", cos, persistent=False)
        self.register_buffer("rope_sin", sin, persistent=False)

    @torch.no_grad()
    def init_state(self, batch: int, context: int = 0) -> TTTState:
        """See CausalLM.init_state; the state holds any context."""
        dtype, caches = at_least_float32(self.dtype), self._conv_caches(batch)
        inner = self.operator.init_states(self._learner_weights, batch, self.config.mini_batch, dtype)
        states = (type(inner)(*(each[layer] for each in inner)) for layer in range(self.config.layers))
        layers = [LayerState(*each) for each in zip(*self._by_layer(caches), states, strict=True)]
        return TTTState(batch, layers, whole=WholeState(caches, inner))

    @torch.no_grad()
    def reset_state(self, state: TTTState) -> None:
        """See CausalLM.reset_state; takes a state of generate_state too, and leaves it in its form."""
        state.length = 0
        if state.whole is not None:
            if state.whole.caches is not None:
                state.whole.caches.zero_()
            self.operator.restart_states(state.whole.inner, self._learner_weights)
            return
        for block, layer in zip(self.blocks, state.layers, strict=True):
            for cache in (layer.block_conv, layer.qk_conv):
                if cache is not None:
                    cache.zero_()
            fresh = self._inner_state(block, state.batch)
            same_form = type(fresh) is type(layer.inner)
            overwrite(layer.inner, fresh if same_form else self.operator.generate_state(fresh))

    @torch.no_grad()
    def generate_state(self, state: TTTState, into: TTTState | None = None) -> TTTState:
        """See CausalLM.generate_state; shares the convolution caches of `state`.

        `into`, an earlier result for this same `state`, is brought up to date in place, so that a CUDA graph captured
        on it serves the next prompt.
        """
        if into is None:
            made = [replace(layer, inner=self.operator.generate_state(layer.inner)) for layer in state.layers]
            return TTTState(state.batch, made, state.length)
        for old, layer in zip(into.layers, state.layers, strict=True):  # one layer's copy at a time
            overwrite(old.inner, self.operator.generate_state(layer.inner))
        into.length = state.length
        return into

    @torch.no_grad()
    def init_generate_state(self, batch: int, context: int = 0) -> TTTState:
        """See CausalLM.init_generate_state; at most one layer exists in both forms at a time."""
        inner = (self.operator.generate_state(self._inner_state(block, batch)) for block in self.blocks)
        caches = self._by_layer(self._conv_caches(batch))
        return TTTState(batch, [LayerState(*each) for each in zip(*caches, inner, strict=True)])

    def _conv_caches(self, batch: int) -> Tensor | None:
        """The empty caches of the blocks' first convolutions, then of the shared projections: [2, layers, B, 3, C]."""
        if self.config.backbone == "transformer":
            return None
        caches = empty_conv_cache(2 * self.config.layers * batch, self.config.width, self.device, self.dtype)
        return caches.unflatten(0, (2, self.config.layers, batch))

    def _by_layer(self, caches: Tensor | None) -> Sequence[Sequence[Tensor | None]]:
        return [[None] * self.config.layers] * 2 if caches is None else [each.unbind() for each in caches]

    @property
    def _learner_weights(self) -> list[list[Tensor]]:
        return [block.seq_modeling_block.learner_weights() for block in self.blocks]

    def _inner_state(self, block: TTTBlock, batch: int) -> Any:
        weights = block.seq_modeling_block.learner_weights()
        return self.operator.init_state(weights, batch, self.config.mini_batch, at_least_float32(self.dtype))

    @property
    def blocks(self) -> list[TTTBlock]:
        """The blocks, in their order."""
        return cast(list[TTTBlock], list(self.model.layers))

    def _through_prompt(self, ids: Tensor, state: TTTState) -> Tensor:
        """See ChunkedModel; two chunks at a time where the operator leaves SMs idle."""
        length = self._chunk_length(len(ids))
        if ids.shape[1] <= length or not self._leaves_idle(len(ids)):
            return super()._through_prompt(ids, state)
        chunks = ids.split(length if ids.shape[1] < self.many_chunks * length else 2 * length, dim=1)
        overlap = Overlap(self.device)
        for chunk in chunks:
            with overlap.chunk():
                hidden = self._hidden(chunk, state, overlap.layer)
        overlap.join()
        return hidden[:, -1:]

    def _leaves_idle(self, batch: int) -> bool:
        """Whether the operator's blocks, one a head, take at most half of the GPU's SMs."""
        if self.device.type != "cuda" or not self.operator.block_a_head:
            return False
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        return 2 * batch * self.config.heads <= processors

    def _hidden(
        self,
        ids: Tensor,
        state: TTTState,
        around_layer: Callable[[int], AbstractContextManager[object]] = lambda index: nullcontext(),
    ) -> Tensor:
        start = None if state.length is None else state.length % self.config.mini_batch
        h = self.model.embed_tokens(ids)
        for index, (block, layer) in enumerate(zip(self.blocks, state.layers, strict=True)):
            with around_layer(index), layer_range(index):
                h = block(h, self._rope, layer, self.operator, start)
        state.length = None if state.length is None else state.length + ids.shape[1]
        return h

    def _hidden_step(self, ids: Tensor, state: TTTState) -> Tensor:
        h = self.model.embed_tokens(ids)
        for index, (block, layer) in enumerate(zip(self.blocks, state.layers, strict=True)):
            with layer_range(index):
                h = block.generate_step(h, self._rope, layer, self.operator)
        state.length = None
        return h

    @property
    def _rope(self) -> Rotation:
        return self.get_buffer("rope_cos"), self.get_buffer("rope_sin")

    def _chunk_length(self, batch: int) -> int:
        """Whole mini-batches: a chunk ends inside one only where the prompt or the state's start makes it."""
        tokens = self.overlapped_tokens // batch if self._leaves_idle(batch) else super()._chunk_length(batch)
        return max(self.config.mini_batch, tokens // self.config.mini_batch * self.config.mini_batch)
