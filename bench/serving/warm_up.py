"""Steps that compile every kernel and load every library when the engine starts, so that no request waits for them."""

from collections.abc import Iterator

import torch

from bench.models.ttt import TTTModel
from bench.serving.pages import Layout, hidden
from bench.serving.step import MOST_SEQUENCES, Step
from tk_kernels.edges.swiglu_product import LEAST_ROWS
from tk_kernels.packed import packed


def warm_up(model: TTTModel, layout: Layout) -> None:
    """Run steps that together launch every compiled variant of a kernel that a step can launch."""
    page = torch.zeros(1, layout.page_bytes, dtype=torch.int8, device=model.device)
    layers = [layout.views(page)] * len(model.blocks)
    for step in _steps(model.device):
        assert step.prompts is not None
        ids = torch.zeros(len(step.slots) + step.prompts.tokens, dtype=torch.int64, device=model.device)
        hidden(model, layout, layers, ids, step)


def _steps(device: torch.device) -> Iterator[Step]:
    """Between powers of two, all n have the same kernel variants; from LEAST_ROWS on they do not change."""
    for n in (1 << power for power in range(LEAST_ROWS.bit_length())):
        zeros = torch.zeros(n, dtype=torch.int32, device=device)
        ends = torch.arange(n + 1, dtype=torch.int32, device=device)
        for length in (0, 1) if n <= MOST_SEQUENCES else (0,):
            yield Step(zeros.long(), zeros, packed(ends, zeros, zeros.long(), n, length))
