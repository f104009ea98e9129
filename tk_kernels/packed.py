"""Layout of sequences packed in tensors [N, ...], as in FlashAttention's varlen functions."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

CHUNK = 16  # tokens that one program of `edges/short_convolution.py` computes


@dataclass(frozen=True)
class Packed:
    """Layout of S sequences packed in dimension 0 of tensors [N, ...], and their state slots.

    cu_seqlens [S + 1] int32: sequence s has the tokens cu_seqlens[s] to cu_seqlens[s + 1] - 1. It may have none.
    start [S] int32: number of earlier tokens per sequence. With 0, a sequence starts from the initial weights.
    slots [S] int64: each sequence's index in dimension 0 of the state's tensors, unique among non-empty sequences.
    tokens: N, the number of tokens of all sequences.
    length: the number of tokens per sequence if all sequences are to run as one batch, otherwise 0.
        One batch requires equal lengths, and `start` values that are multiples of the mini-batch size.
    """

    cu_seqlens: Tensor
    start: Tensor
    slots: Tensor
    tokens: int
    length: int = 0

    @cached_property
    def chunks(self) -> Tensor:
        """Each chunk's (sequence, offset in the sequence): [N // CHUNK + S, 2] int32.

        A chunk is up to CHUNK tokens. The number of rows is an upper bound, so that no host sync is needed.
        Unused rows have offsets at or past the last sequence's length.
        """
        sequences = len(self.slots)
        counts = -(-self.cu_seqlens.diff() // CHUNK)
        ends = counts.cumsum(0)
        index = torch.arange(self.tokens // CHUNK + sequences, device=ends.device)
        sequence = torch.searchsorted(ends, index, right=True).clamp_max_(sequences - 1)
        first = (index - (ends - counts)[sequence]) * CHUNK
        return torch.stack((sequence, first), 1).int()

    @cached_property
    def positions(self) -> Tensor:
        """Position [N] int64 of each token in its sequence, counting the `start` earlier tokens."""
        lengths = self.cu_seqlens.diff()
        moved = (self.start - self.cu_seqlens[:-1]).repeat_interleave(lengths, output_size=self.tokens)
        return moved + torch.arange(self.tokens, device=moved.device)
