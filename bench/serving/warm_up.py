"""Run steps when the engine starts, which compile all kernels and load all libraries, so no request waits.

Steps in which all requests generate are compiled later: by vLLM's CUDA graph capture or, with `--enforce-eager`, by
the first such step.
"""

import torch

from bench.models.ttt import TTTModel
from bench.serving.pages import Layout, hidden
from tk_kernels.edges.swiglu_product import LEAST_ROWS
from tk_kernels.packed import packed


def warm_up(model: TTTModel, layout: Layout) -> None:
    """Run steps with prompts that launch every compiled variant of the kernels.

    All numbers of sequences between two powers of two use the same variants, and so do all from LEAST_ROWS on.
    """
    page = torch.zeros(1, layout.page_bytes, dtype=torch.int8, device=model.device)
    layers = [layout.views(page)] * len(model.blocks)
    sequences = [1 << power for power in range(LEAST_ROWS.bit_length())]
    for count, length in (*((count, 0) for count in sequences), (1, 1)):  # of length 1: the CUDA kernel for batches
        zeros = torch.zeros(count, dtype=torch.int32, device=model.device)
        ends = torch.arange(count + 1, dtype=torch.int32, device=model.device)
        hidden(model, layout, layers, zeros.long(), packed(ends, zeros, zeros.long(), count, length))
