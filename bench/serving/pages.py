"""Store the states of sequences in vLLM's cache, and run the steps that update them.

A page of bytes holds one layer's state of one sequence; a slot is the index of a page.
A page contains the convolutions' last inputs, if any, then the state of generate steps without its position.
The position follows from the number of tokens that vLLM has computed.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from bench.models.config import TTTConfig
from bench.models.kernel_operator import KernelOperator
from bench.models.layers import at_least_float32, empty_conv_cache
from bench.models.operator import TorchOperator
from bench.models.ttt import BlockState, TTTModel, TTTState
from tk_kernels.edges.swiglu_product import LEAST_ROWS
from tk_kernels.packed import Packed
from tk_kernels.reference.token_rows import mapped

ALIGNED = 64  # bytes; makes offsets and strides multiples of 16 float32 numbers, for which Triton compiles the kernels

# A step that runs as one batch: most sequences, and fewest tokens in total or per sequence (one suffices).
# The batch's kernel is faster, but it needs float32 copies of the states, and takes the CPU longer to launch.
MOST_SEQUENCES, LEAST_TOKENS, LEAST_LENGTH = 64, 16384, 4096


class Generating(NamedTuple):
    """A step in which each of B requests generates a token.

    slots [B]: each request's cache slot. positions [B]: each request's position in the mini-batch.
    """

    slots: Tensor
    positions: Tensor


Step = Generating | Packed  # a step with prompts is packed: requests that generate are sequences of one token there


def common_length(lengths: Sequence[int], computed: Sequence[int], mini_batch: int) -> int:
    """Return the number of tokens per sequence if a step can run as one batch, otherwise 0.

    lengths: each sequence's tokens in this step. computed: each sequence's tokens before this step.
    A batch has at most MOST_SEQUENCES sequences, all of one length and at the start of a mini-batch.
    It has at least LEAST_TOKENS tokens in total, or at least LEAST_LENGTH per sequence.
    """
    uniform = len(set(lengths)) == 1 and not any(before % mini_batch for before in computed)
    is_long = sum(lengths) >= LEAST_TOKENS or lengths[0] >= LEAST_LENGTH
    return lengths[0] if uniform and is_long and len(lengths) <= MOST_SEQUENCES else 0


class Layout:
    """Offset, shape and dtype of each tensor in a page (one layer's state of one sequence)."""

    def __init__(self, config: TTTConfig, operator: TorchOperator, dtype: torch.dtype) -> None:
        device, inner = torch.device("meta"), at_least_float32(dtype)
        weights = [torch.empty(shape, device=device, dtype=inner) for shape in config.weight_shapes.values()]
        convolved = config.backbone == "mamba"
        block_conv, qk_conv = (
            empty_conv_cache(1, config.width, device, dtype) if convolved else None for _ in range(2)
        )
        first = operator.init_state(weights, 1, config.mini_batch, inner)
        self._empty = BlockState(block_conv, qk_conv, replace(operator.generate_state(first), position=None))
        self.spans: list[tuple[int, tuple[int, ...], torch.dtype]] = []  # offset, shape and dtype of each tensor
        self.page_bytes = 0

        def add_span(x: Tensor) -> Tensor:
            self.spans.append((self.page_bytes, tuple(x.shape[1:]), x.dtype))
            self.page_bytes += -(-x.numel() * x.element_size() // ALIGNED) * ALIGNED
            return x

        mapped(self._empty, add_span)

    def state(self, pages: Tensor) -> BlockState:
        """Return views of int8 `pages` [slots, bytes]: a layer's states [slots, ...], no positions."""
        spans = iter(self.spans)

        def view(_: Tensor) -> Tensor:
            offset, shape, dtype = next(spans)
            return pages[:, offset : offset + prod(shape) * dtype.itemsize].view(dtype).unflatten(1, shape)

        return mapped(self._empty, view)


def hidden(model: TTTModel, layers: Sequence[BlockState], ids: Tensor, step: Step) -> Tensor:
    """Run a step; return the residual stream [n, C] of its n tokens, before the last norm.

    The states in slots `step.slots` are updated in place.
    model: has blocks of class `FusedBlock` and a `KernelOperator`. C: the model's width.
    layers: each layer's states, from `Layout.state`. ids [N]: n token ids, then padding.
    """
    operator = model.operator
    assert isinstance(operator, KernelOperator)
    if isinstance(step, Packed):
        h = model.model.embed_tokens(ids[None, : step.tokens])
        for state, block in zip(layers, model.blocks, strict=True):
            initial = block.seq_modeling_block.learner_weights()
            inner_loop = partial(operator.forward_packed, initial=initial, sequences=step)
            inner = replace(state.inner, position=step.start)
            h = block(h, model._rope, replace(state, inner=inner, sequences=step), inner_loop)
        return h[0]
    positions = step.positions[:, None].repeat(1, model.config.heads)  # as the kernels read them
    batch, slots = len(step.slots), step.slots
    states = [replace(each, inner=replace(each.inner, position=positions, slots=slots), slots=slots) for each in layers]
    return model._hidden_step(ids[:batch, None], TTTState(batch, states))[:, 0]


def warm_up(model: TTTModel, layout: Layout) -> None:
    """Compile and load the kernels of steps with prompts, before the first request.

    The steps have 1, 2, 4, ..., LEAST_ROWS sequences, because small and large batches run different kernels.
    Steps without prompts are compiled by vLLM's graph capture or, with `--enforce-eager`, at first use.
    """
    page = torch.zeros(1, layout.page_bytes, dtype=torch.int8, device=model.device)
    layers = [layout.state(page)] * len(model.blocks)
    sequences = [1 << power for power in range(LEAST_ROWS.bit_length())]
    for count, length in (*((count, 0) for count in sequences), (1, 1)):  # of length 1: the CUDA kernel for batches
        zeros = torch.zeros(count, dtype=torch.int32, device=model.device)
        ends = torch.arange(count + 1, dtype=torch.int32, device=model.device)
        hidden(model, layers, zeros.long(), Packed(ends, zeros, zeros.long(), count, length))
