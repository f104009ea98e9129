"""A TTT block (`ttt.TTTBlock`) in at most ten kernel launches, not counting the inner loop.

Projections that share an input are one GEMM; kernels read its output's columns in place. Output GEMMs add to the
residual stream in place. Shapes: B sequences, T tokens per sequence, C = width of the model, F = width inside SwiGLU.
pdl: whether a kernel may start before earlier kernels end (programmatic dependent launch); only for T = 1.
"""

from collections.abc import Callable, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.config import TTTConfig
from bench.models.layers import operator_range, round_up
from bench.models.operator import OuterParameters, Projections
from bench.models.overlap import is_overlapped
from bench.models.ttt import BlockState, InnerLoop, TTTBlock
from tk_kernels.edges.few_rows import MOST_ROWS_FEW_OUTPUTS, Norm, few_rows_gemm, fits
from tk_kernels.edges.short_convolution import query_key, residual_convolution
from tk_kernels.edges.swiglu_product import swiglu_product
from tk_kernels.reference.layer import Rotation

MAX_PDL_BATCH = {"linear": 8, "mlp": 2}  # by learner: the largest batch that counts as small in `pdl_is_faster`
ALIGNED = 8  # columns of 2 bytes per 16-byte load


class FusedBlock(TTTBlock):
    """`TTTBlock` with elementwise steps in Triton: the same parameters, no gradients.

    A call adds to the residual stream in place; with the Transformer backbone this overwrites the caller's tensor.
    Between calls, parameters may be changed in place and the module moved or cast, but a parameter must not be replaced
    or changed through `.data`: the block would use the old values.
    """

    def __init__(self, config: TTTConfig, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(config, device, dtype)
        self._pack()
        self._outer: OuterParameters

    def forward(self, h: Tensor, rope: Rotation, state: BlockState, inner_loop: InnerLoop) -> Tensor:
        changed = self._refresh_packed(rope)
        layer = self.seq_modeling_block
        is_served = state.slots is not None or state.sequences is not None
        is_own_step = h.shape[1] == 1 and not is_served and not is_overlapped()
        pdl = is_own_step and pdl_is_faster(layer.config.learner, len(h)) and fits(h, self._projections)
        # `dependent_launch` needs a plain launch between two writes of a state, and after new parameters. In vLLM, the
        # kernel before the block writes its state.
        h, x = self._enter(h, state, pdl and not changed)
        projected = gemm(x, self._projections, pdl)
        projections = self._split(projected, rope, state, pdl)
        with operator_range():
            out = inner_loop(projections, self._outer, state.inner)
        norm, out = layer.post_norm, out.flatten(-2)
        if layer.config.backbone == "mamba":
            before = Norm(norm.weight, norm.eps, norm.bias, self._columns(projected, 2))
            add_gemm_(h, out, layer.o_proj.weight, pdl, before)
        else:
            add_gemm_(h, norm(out), layer.o_proj.weight, pdl)
        hidden = self._swiglu_hidden(h, pdl)
        return add_gemm_(h, hidden, self.mlp.down_proj.weight, pdl)

    def _swiglu_hidden(self, h: Tensor, pdl: bool) -> Tensor:
        """Return `silu(gate(x)) * up(x)` [B, T, F] for x = ffn_norm(h) and SwiGLU's projections."""
        norm = Norm(self.ffn_norm.weight, self.seq_modeling_block.config.norm_eps)
        if has_few_rows(h, self._gate_up, swiglu=True):
            return few_rows_gemm(h, self._gate_up, norm, swiglu=True, pdl=pdl)
        return swiglu_product(norm(h), self._gate_up, concurrent=is_overlapped())

    def _enter(self, h: Tensor, state: BlockState, pdl: bool) -> tuple[Tensor, Tensor]:
        if state.block_conv is None:
            return h, self.seq_norm(h)
        conv, eps = self.conv.conv, self.seq_modeling_block.config.norm_eps
        weights = (self.conv.norm.weight, conv.weight, conv.bias, self.seq_norm.weight)
        return residual_convolution(
            h, state.block_conv, *weights, eps, pdl=pdl, slots=state.slots, sequences=state.sequences
        )

    def _split(self, projected: Tensor, rope: Rotation, state: BlockState, pdl: bool) -> Projections:
        # Columns: [convolution input, v, output gate, lr logits] (Mamba backbone), [q, v, k, lr logits] (Transformer).
        layer = self.seq_modeling_block
        logits, bias = projected[..., self._lr_rows()], layer.learnable_ttt_lr_bias[:, 0]
        shared, v = self._columns(projected, 0), layer.heads(self._columns(projected, 1))
        if state.qk_conv is None:
            k = self._columns(projected, 2)
            return Projections(layer.heads(shared), layer.heads(k), v, logits + bias)
        conv_q, conv_k = ((conv.weight, conv.bias) for conv in (layer.conv_q, layer.conv_k))
        position, base_lr = state.inner.position, layer.config.base_lr
        inputs = (shared, state.qk_conv, conv_q, conv_k, rope, position, logits, bias, base_lr)
        q, k, lr = query_key(*inputs, pdl=pdl, slots=state.slots, sequences=state.sequences)
        return Projections(q, k, v, lr, ready=True, pdl=pdl)

    def _columns(self, projected: Tensor, index: int) -> Tensor:
        width = self.seq_modeling_block.config.width
        return projected[..., index * width : (index + 1) * width]

    def _lr_rows(self) -> slice:
        config = self.seq_modeling_block.config
        return slice(3 * config.width, 3 * config.width + config.heads)

    def _pack(self) -> None:
        config, layer = self.seq_modeling_block.config, self.seq_modeling_block
        third = layer.g_proj if config.backbone == "mamba" else layer.k_proj
        # Spare rows hold the learning rate's weights, and zeros that pad them to a 16-byte load.
        self._projections = pack([layer.q_proj, layer.v_proj, third], spare_rows=round_up(config.heads, ALIGNED))
        self._gate_up = pack([self.mlp.gate_proj, self.mlp.up_proj])
        if config.backbone == "mamba":
            for conv in (self.conv.conv, layer.conv_q, layer.conv_k):
                # Kernels need the weights [C, 1, 4] with stride 1 along C.
                conv.weight.data = conv.weight.data.permute(2, 1, 0).contiguous().permute(2, 1, 0)
        self._versions: list[int] = []

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # gives each parameter its own memory
        self._pack()
        return self

    def _refresh_packed(self, rope: Rotation) -> bool:
        """Recompute packed lr weights and token scales if outdated; return whether they were."""
        layer = self.seq_modeling_block
        versions = [weight._version for weight in (layer.learnable_ttt_lr_weight, layer.learnable_token_idx)]
        changed = versions != self._versions
        if changed:
            self._projections[self._lr_rows()].copy_(layer.learnable_ttt_lr_weight[:, 0])
            self._outer = layer.outer_parameters(rope)
            self._versions = versions
        return changed


def pack(projections: Sequence[nn.Linear], spare_rows: int = 0) -> Tensor:
    """Stack the projections' weights into one matrix; the weights become views of its rows.

    The matrix has shape [sum of output sizes + spare_rows, C]; the spare rows are last, and zero.
    """
    weights = [projection.weight for projection in projections]
    inputs = weights[0].shape[1]
    packed = weights[0].data.new_empty(sum(len(weight) for weight in weights) + spare_rows, inputs)
    for weight, rows in zip(weights, packed.split([*map(len, weights), spare_rows]), strict=False):
        rows.copy_(weight.data)
        weight.data = rows
    packed[len(packed) - spare_rows :].zero_()
    return packed


def pdl_is_faster(learner: str, batch: int) -> bool:
    """Return whether programmatic dependent launch (PDL) speeds up a generate step on an H200.

    learner: "linear" or "mlp". batch: number of sequences.
    PDL helps in small batches and above MOST_ROWS_FEW_OUTPUTS. In between, waiting thread blocks occupy SMs.
    """
    return batch <= MAX_PDL_BATCH[learner] or batch > MOST_ROWS_FEW_OUTPUTS  # above, cuBLAS launches come in between


def has_few_rows(x: Tensor, weight: Tensor, *, swiglu: bool = False) -> bool:
    return x.shape[1] == 1 and fits(x, weight, swiglu=swiglu)


def gemm(x: Tensor, weight: Tensor, pdl: bool) -> Tensor:
    """Return x [B, T, C] @ weight [N, C]^T."""
    return few_rows_gemm(x, weight, pdl=pdl) if has_few_rows(x, weight) else F.linear(x, weight)


def add_gemm_(total: Tensor, x: Tensor, weight: Tensor, pdl: bool, before: Norm | None = None) -> Tensor:
    """Add x @ weight^T to `total` in place, and return `total`.

    total [B, T, C]; x [B, T, K] and weight [C, K] for any K.
    before: a norm to apply to x first, with or without an output gate.
    """
    if has_few_rows(x, weight):
        return few_rows_gemm(x, weight, before, out=total, pdl=pdl)
    x = before(x) if before is not None else x
    total.view(-1, total.shape[-1]).addmm_(x.view(-1, x.shape[-1]), weight.t())
    return total
