"""The requests of a vLLM step."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tk_kernels.packed import Packed

# A step of at most so many sequences and at least so many tokens runs as one batch, on float32 copies of the states.
# Launching the copies takes longer than a step of fewer tokens.
MOST_SEQUENCES, LEAST_TOKENS = 64, 16384


class Generating(NamedTuple):
    """A step in which each of D requests generates a token.

    slots [D], positions [D]: the requests' cache slots, and their positions in the mini-batch.
    """

    slots: Tensor
    positions: Tensor


Step = Generating | Packed  # a step with prompts is packed: requests that generate are sequences of one token there


def common_length(lengths: Sequence[int], computed: Sequence[int], mini_batch: int) -> int:
    """Return the common length in tokens of a step's sequences if they can run as a batch, otherwise 0.

    lengths: each sequence's tokens in this step. computed: its earlier tokens, which must be whole mini-batches.
    """
    alike = len(set(lengths)) == 1 and not any(before % mini_batch for before in computed)
    return lengths[0] if alike and len(lengths) <= MOST_SEQUENCES and sum(lengths) >= LEAST_TOKENS else 0
