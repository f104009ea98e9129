"""Steps that compile every kernel and load every library when the engine starts, so that no request waits for them.

Steps in which all requests generate are compiled later: by vLLM's CUDA graph capture or, with `--enforce-eager`, by
the first such step.
"""

import torch

from bench.models.ttt import TTTModel
from bench.serving.pages import Layout, hidden
from tk_kernels.edges.swiglu_product import LEAST_ROWS
from tk_kernels.packed import packed


def warm_up(model: TTTModel, layout: Layout) -> None:
    """Run steps that launch every compiled kernel variant of steps with prompts.

    Numbers of sequences between two powers of two share variants, and so do all numbers from LEAST_ROWS on.
    """
    page = torch.zeros(1, layout.page_bytes, dtype=torch.int8, device=model.device)
    layers = [layout.views(page)] * len(model.blocks)
    sequences = [1 << power for power in range(LEAST_ROWS.bit_length())]
    for count, length in (*((count, 0) for count in sequences), (1, 1)):  # of length 1: the CUDA kernel for batches
        zeros = torch.zeros(count, dtype=torch.int32, device=model.device)
        ends = torch.arange(count + 1, dtype=torch.int32, device=model.device)
        hidden(model, layout, layers, zeros.long(), packed(ends, zeros, zeros.long(), count, length))
