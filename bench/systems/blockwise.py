"""Run a model on a GPU one block at a time, with its weights on the host."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.base import ChunkedModel


@contextmanager
def visiting(block: nn.Module, device: torch.device) -> Iterator[None]:
    """Move a block's weights and buffers to `device` in the context; then restore the originals."""
    tensors = (*block.parameters(), *block.buffers())
    moved = [(tensor, tensor.data) for tensor in tensors if tensor.device.type != device.type]
    try:
        for tensor, original in moved:
            tensor.data = original.to(device)
        yield
    finally:
        for tensor, original in moved:
            tensor.data = original


@torch.no_grad()
def last_logits(model: ChunkedModel, ids: Tensor, last: int, device: torch.device) -> Tensor:
    """Run ids [B, T] block by block; return logits [B, last, V] of the final `last` positions."""
    h = F.embedding(ids.to(device), model.model.embed_tokens.weight.to(device))
    for block in model.model.layers:
        with visiting(block, device):
            h = model.run_block(block, h)
    with visiting(model.model.norm, device):
        return F.linear(model.model.norm(h[:, -last:]), model.head.to(device))
