"""Sequences of different lengths, one after the other in tensors [N, ...] of tokens: FlashAttention's `varlen` form."""

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 16  # tokens of a chunk: a program of `edges/short_convolution.py` computes one


class Packed(NamedTuple):
    """Where the tokens and the states of S sequences are.

    cu_seqlens [S + 1] int32: sequence s has the tokens cu_seqlens[s] to cu_seqlens[s + 1] - 1, possibly none.
    start [S] int32: tokens of each sequence before these. A sequence with 0 begins with the learner's initial weights.
    slots [S] int64: index of each sequence in tensors of states, at most once each.
    chunks [least N // CHUNK + S, 2] int32: sequence of each chunk and offset in it; rows past the last are empty.
    tokens: N. length: tokens of each sequence if all have as many and start at a mini-batch; otherwise 0.
    """

    cu_seqlens: Tensor
    start: Tensor
    slots: Tensor
    chunks: Tensor
    tokens: int
    length: int = 0

    def positions(self) -> Tensor:
        """Return the number of tokens [N] before each token in its sequence."""
        lengths = self.cu_seqlens.diff()
        moved = (self.start - self.cu_seqlens[:-1]).repeat_interleave(lengths, output_size=self.tokens)
        return moved + torch.arange(self.tokens, device=moved.device)


def packed(cu_seqlens: Tensor, start: Tensor, slots: Tensor, tokens: int, length: int = 0) -> Packed:
    """Return the layout of `tokens` tokens; computes `chunks` without a host sync."""
    sequences = len(slots)
    counts = -(-cu_seqlens.diff() // CHUNK)
    ends = counts.cumsum(0)
    index = torch.arange(tokens // CHUNK + sequences, device=cu_seqlens.device)
    sequence = torch.searchsorted(ends, index, right=True).clamp_max_(sequences - 1)
    first = (index - (ends - counts)[sequence]) * CHUNK
    return Packed(cu_seqlens, start, slots, torch.stack((sequence, first), 1).int(), tokens, length)
