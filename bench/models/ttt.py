"""TTT language models: arXiv 2407.04620, section 2 (the layer) and appendix (backbones).

A block is a convolution (only with the Mamba backbone), a TTT layer and SwiGLU. A TTT layer has projections, an inner
loop (`TorchOperator`) and an output projection.
Shapes: B sequences, T tokens per sequence, C = width of the model, H heads of dimension D.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.base import ChunkedModel, Decoder
from bench.models.config import NORM_EPS, TTTConfig
from bench.models.layers import (
    CausalConv,
    SwiGLU,
    at_least_float32,
    empty_conv_cache,
    layer_range,
    linear,
    operator_range,
    parameter,
    slide,
)
from bench.models.operator import OuterParameters, Projections, TorchOperator, rows_of
from bench.models.overlap import Overlap
from tk_kernels.packed import Packed
from tk_kernels.reference.layer import Rotation, rotation
from tk_kernels.reference.token_rows import mapped, overwrite


@dataclass
class BlockState:
    """The state of one block.

    block_conv [B, 3, C]: the last three inputs of the block's convolution; None with the Transformer backbone.
    qk_conv [B, 3, C]: the last three inputs that Q's and K's convolutions share; None with the Transformer backbone.
    inner: the inner loop's state, which the operator defines.
    slots [B]: each sequence's row in state tensors with more than B rows; only for a generate step of `FusedBlock`.
    sequences: each sequence's range of tokens and its row in the state tensors; only for packed tokens in `FusedBlock`.
    """

    block_conv: Tensor | None
    qk_conv: Tensor | None
    inner: Any
    slots: Tensor | None = None
    sequences: Packed | None = None


@dataclass
class TTTState:
    """The state of `batch` sequences; its size does not depend on their length.

    length: number of tokens read per sequence; None if unknown. A generate step sets it to None.
    caches [2, layers, B, 3, C]: all layers' block_conv in caches[0], qk_conv in caches[1]; None if not stored together.
    inner: the operator's states, stacked over layers; None unless the state comes from `init_state`.
    layers: each layer's state; its tensors are views of `caches` and `inner` where these are not None.
    """

    batch: int
    layers: list[BlockState]
    length: int | None = 0
    caches: Tensor | None = None
    inner: Any = None

    def rows(self, rows: slice) -> "TTTState":
        """Return the state of the sequences in the slice `rows`, as views."""
        caches = None if self.caches is None else self.caches[:, :, rows]
        layers = [rows_of(layer, rows) for layer in self.layers]
        return TTTState(len(range(self.batch)[rows]), layers, self.length, caches)


class BlockConv(nn.Module):
    def __init__(self, config: TTTConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.width, config.norm_eps, device=device, dtype=dtype)
        self.conv = CausalConv(config.width, device, dtype)

    def forward(self, x: Tensor, cache: Tensor) -> Tensor:
        return self.conv(slide(cache, self.norm(x)))


class TTTLayer(nn.Module):
    """The TTT layer around its inner loop: projections, convolutions, norm, output gate.

    Projections and norms are in `dtype`.
    The inner loop's parameters (W1, b1, ..., learnable_*, ttt_norm_*) are in at least float32.
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
        self.learnable_token_idx = parameter((config.mini_batch,), device, inner)
        self.learnable_ttt_lr_weight = parameter((config.heads, 1, config.width), device, inner)
        self.learnable_ttt_lr_bias = parameter((config.heads, 1), device, inner)
        self.ttt_norm_weight = parameter((config.heads, config.head_dim), device, inner)
        self.ttt_norm_bias = parameter((config.heads, config.head_dim), device, inner)
        for name, shape in config.weight_shapes.items():
            self.register_parameter(name, parameter(shape, device, inner))
        index = torch.arange(1, config.mini_batch + 1, device=device, dtype=inner)
        self.register_buffer("token_idx", 1.0 / index, persistent=False)

    def learner_weights(self) -> list[Tensor]:
        """Return the initial weights of the hidden state: W1, b1 and, for TTT-MLP, W2, b2."""
        return [self.get_parameter(name) for name in self.config.weight_shapes]

    def project(self, x: Tensor, state: BlockState) -> Projections:
        """Return inner-loop inputs for x [B, T, C]; store the last convolution inputs in `state`."""
        if state.qk_conv is None:
            q, k = self.q_proj(x), self.k_proj(x)
        else:
            window = slide(state.qk_conv, self.q_proj(x))
            q, k = self.conv_q(window), self.conv_k(window)
        lr_logits = F.linear(x, self.learnable_ttt_lr_weight[:, 0].to(x.dtype)) + self.learnable_ttt_lr_bias[:, 0]
        return Projections(self.heads(q), self.heads(k), self.heads(self.v_proj(x)), lr_logits)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.config.heads, self.config.head_dim))

    def outer_parameters(self, rope: Rotation) -> OuterParameters:
        """Return the inner loop's parameters outside its state. rope: the result of `rope_tables`."""
        # s_i = max(0, 1/(i+1) + learnable_i)
        token_scale = torch.clamp_min(self.get_buffer("token_idx") + self.learnable_token_idx, 0.0)
        base_lr, theta = self.config.base_lr, self.config.rope_theta
        return OuterParameters(token_scale, self.ttt_norm_weight, self.ttt_norm_bias, base_lr, rope, theta)

    def output(self, x: Tensor, out: Tensor) -> Tensor:
        """Return the output [B, T, C] for input x [B, T, C] and the inner loop's out [B, T, H, D]."""
        out = self.post_norm(out.flatten(-2))
        if self.config.backbone == "mamba":
            out = F.gelu(self.g_proj(x), approximate="tanh") * out
        return self.o_proj(out)


# Runs the inner loop on projections of T tokens and advances `BlockState.inner`; returns out [B, T, H, D].
InnerLoop = Callable[[Projections, OuterParameters, Any], Tensor]


class TTTBlock(nn.Module):
    """Convolution (only with Mamba backbone), TTT layer, SwiGLU; with pre-norms and residuals."""

    def __init__(self, config: TTTConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        if config.backbone == "mamba":
            self.conv = BlockConv(config, device, dtype)
        self.seq_norm = nn.RMSNorm(config.width, config.norm_eps, device=device, dtype=dtype)
        self.seq_modeling_block = TTTLayer(config, device, dtype)
        self.ffn_norm = nn.RMSNorm(config.width, config.norm_eps, device=device, dtype=dtype)
        self.mlp = SwiGLU(config.width, config.ffn_width, device, dtype)

    def forward(self, h: Tensor, rope: Rotation, state: BlockState, inner_loop: InnerLoop) -> Tensor:
        """Run the block on the residual stream h [B, T, C]; advance `state`, return the new stream.

        rope: the result of `rope_tables`. inner_loop: returns its output [B, T, H, D] and advances its state.
        """
        if state.block_conv is not None:
            h = h + self.conv(h, state.block_conv)
        layer, x = self.seq_modeling_block, self.seq_norm(h)
        projections, outer = layer.project(x, state), layer.outer_parameters(rope)
        with operator_range():
            out = inner_loop(projections, outer, state.inner)
        h = h + layer.output(x, out)
        return h + self.mlp(self.ffn_norm(h))


def rope_tables(config: TTTConfig, device: torch.device, dtype: torch.dtype) -> Rotation:
    """Return RoPE's cos and sin [mini_batch, D/2], one row per position, in at least float32."""
    positions = torch.arange(config.mini_batch, device=device)
    cos, sin = (table.squeeze(-2) for table in rotation(positions, config.head_dim, dtype, config.rope_theta))
    return cos, sin


LayerScope = Callable[[int], AbstractContextManager[object]]  # returns the context in which a layer, by index, runs


class TTTModel(ChunkedModel):
    """A TTT-Linear or TTT-MLP language model with the authors' parameter names.

    operator: the inner loop, by default the dual form in PyTorch. block: `TTTBlock` or `fused.FusedBlock`.
    """

    least_group_capacity = 16  # sequences that occupy every SM, even with 12 heads each
    overlapped_tokens = 8192  # per overlapped chunk: GEMMs stay efficient, and the second chunk starts early
    many_chunks = 16  # a prompt that would have at least this many chunks is split into half as many

    @torch.inference_mode(False)  # `FusedBlock` needs the versions of weights, which inference tensors lack
    def __init__(
        self,
        config: TTTConfig,
        device: torch.device | str,
        dtype: torch.dtype,
        operator: TorchOperator | None = None,
        block: type[TTTBlock] = TTTBlock,
    ) -> None:
        super().__init__()
        self.config = config
        self.operator: TorchOperator = operator or TorchOperator(config.learner)
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
        dtype = at_least_float32(self.dtype)
        inner = self.operator.init_states(self._learner_weights, batch, self.config.mini_batch, dtype)
        states = (type(inner)(*(each[layer] for each in inner)) for layer in range(self.config.layers))
        return self._state(batch, states, inner)

    @torch.no_grad()
    def reset_state(self, state: TTTState) -> None:
        state.length = 0
        if state.caches is not None:
            state.caches.zero_()
        if state.inner is not None:
            self.operator.restart_states(state.inner, self._learner_weights)
            return
        for block, layer in zip(self.blocks, state.layers, strict=True):
            overwrite(layer.inner, self.operator.generate_state(self._inner_state(block, state.batch)))

    @torch.no_grad()
    def generate_state(self, state: TTTState, into: TTTState | None = None) -> TTTState:
        if into is None:
            made = [replace(layer, inner=self.operator.generate_state(layer.inner)) for layer in state.layers]
            return TTTState(state.batch, made, state.length, state.caches)  # shares the caches, so `into` has them
        for old, layer in zip(into.layers, state.layers, strict=True):
            overwrite(old.inner, self.operator.generate_state(layer.inner))
        into.length = state.length
        return into

    @torch.no_grad()
    def init_generate_state(self, batch: int, context: int = 0) -> TTTState:
        # Converted layer by layer, to save memory.
        states = (self.operator.generate_state(self._inner_state(block, batch)) for block in self.blocks)
        return self._state(batch, states)

    def _state(self, batch: int, states: Iterable[Any], inner: Any = None) -> TTTState:
        count, width = self.config.layers, self.config.width
        if self.config.backbone == "transformer":
            return TTTState(batch, [BlockState(None, None, each) for each in states], inner=inner)
        caches = empty_conv_cache(2 * count * batch, width, self.device, self.dtype).unflatten(0, (2, count, batch))
        return TTTState(batch, [*map(BlockState, *caches.unbind(), states)], caches=caches, inner=inner)

    @property
    def _learner_weights(self) -> list[list[Tensor]]:
        return [block.seq_modeling_block.learner_weights() for block in self.blocks]

    def run_block(self, block: nn.Module, h: Tensor) -> Tensor:
        state = BlockState(None, None, self._inner_state(block, len(h)))
        if self.config.backbone == "mamba":
            shape = (len(h), self.config.width, h.device, h.dtype)
            state.block_conv, state.qk_conv = empty_conv_cache(*shape), empty_conv_cache(*shape)
        rope = self.rope_cos.to(h.device), self.rope_sin.to(h.device)
        return block(h, rope, state, partial(self.operator.forward, start=0))

    def _inner_state(self, block: Any, batch: int) -> Any:
        weights = block.seq_modeling_block.learner_weights()
        return self.operator.init_state(weights, batch, self.config.mini_batch, at_least_float32(self.dtype))

    @property
    def blocks(self) -> list[TTTBlock]:
        return cast(list[TTTBlock], list(self.model.layers))

    def _run_group(self, ids: Tensor, state: TTTState) -> Tensor:
        length = self._chunk_length(len(ids))
        if ids.shape[1] <= length or not self._leaves_sms_idle(len(ids)):
            return super()._run_group(ids, state)
        chunks = ids.split(length if ids.shape[1] < self.many_chunks * length else 2 * length, dim=1)
        overlap = Overlap(self.device)
        for chunk in chunks:
            with overlap.chunk():
                hidden = self._hidden(chunk, state, overlap.layer)
        overlap.join()
        return hidden[:, -1]

    def _leaves_sms_idle(self, batch: int) -> bool:
        if self.device.type != "cuda" or not self.operator.one_block_per_head:
            return False
        sms = torch.cuda.get_device_properties(self.device).multi_processor_count
        return 2 * batch * self.config.heads <= sms

    def _hidden(self, ids: Tensor, state: TTTState, around: LayerScope = nullcontext) -> Tensor:
        start = None if state.length is None else state.length % self.config.mini_batch
        h = self._layers(ids, state, partial(self.operator.forward, start=start), around)
        state.length = None if state.length is None else state.length + ids.shape[1]
        return h

    def _hidden_step(self, ids: Tensor, state: TTTState) -> Tensor:
        state.length = None
        return self._layers(ids, state, self._one_token)

    def _one_token(self, projections: Projections, outer: OuterParameters, state: Any) -> Tensor:
        return self.operator.generate_step(mapped(projections, lambda x: x[:, 0]), outer, state)[:, None]

    def _layers(self, ids: Tensor, state: TTTState, inner_loop: InnerLoop, around: LayerScope = nullcontext) -> Tensor:
        h = self.model.embed_tokens(ids)
        for index, (block, layer) in enumerate(zip(self.blocks, state.layers, strict=True)):
            with around(index), layer_range(index):
                h = block(h, self._rope, layer, inner_loop)
        return h

    @property
    def _rope(self) -> Rotation:
        return self.get_buffer("rope_cos"), self.get_buffer("rope_sin")

    def _chunk_length(self, batch: int) -> int:
        """Return a chunk's tokens per sequence: one or more whole mini-batches."""
        tokens = self.overlapped_tokens // batch if self._leaves_sms_idle(batch) else super()._chunk_length(batch)
        return max(self.config.mini_batch, tokens // self.config.mini_batch * self.config.mini_batch)
