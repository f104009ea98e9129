"""The requests of a vLLM step."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from tk_kernels.packed import Packed

MOST_SEQUENCES = 64  # most prompts that run as a batch: it copies their states, in float32


class Step(NamedTuple):
    """The requests of a vLLM step: D requests that generate a token each, then prompts.

    slots [D], positions [D]: cache slots of the generating requests, and their positions in the mini-batch.
    prompts: the step's prompts, whose tokens follow those of the generating requests; None without prompts.
    """

    slots: Tensor
    positions: Tensor
    prompts: Packed | None


def common_length(lengths: Sequence[int], computed: Sequence[int], mini_batch: int) -> int:
    """Return the prompts' common length in tokens if they can run as a batch, otherwise 0.

    lengths: each prompt's tokens in this step. computed: its earlier tokens, which must be whole mini-batches.
    """
    alike = len(set(lengths)) == 1 and not any(before % mini_batch for before in computed)
    return lengths[0] if alike and len(lengths) <= MOST_SEQUENCES else 0
