"""Run a model whose weights lie on the host on a GPU that has room for one of its blocks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.transformer import Transformer

Model = TypeVar("Model", bound=nn.Module)


def to_host(model: Model) -> Model:
    """The model with its weights on the host; beside a GPU pinned, as each forward copies all of them there."""
    pinned = torch.cuda.is_available()
    model.to("cpu")
    for weight in model.parameters() if pinned else ():
        weight.data = weight.data.pin_memory()
    return model


@contextmanager
def visiting(block: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, the weights of a block are on `device`; after it they are again where they were."""
    away = [(weight, weight.data) for weight in block.parameters() if weight.device.type != device.type]
    try:
        for weight, home in away:
            weight.data = home.to(device)
        yield
    finally:
        for weight, home in away:
            weight.data = home


@torch.no_grad()
def transformer_logits(model: Transformer, ids: Tensor, last: int, device: torch.device) -> Tensor:
    """ids [B, T] -> logits [B, last, V] after the last tokens; keys and values of one layer are held at a time."""
    batch, tokens = ids.shape
    ids = ids.to(device)
    table = model.model.embed_tokens.weight.to(device)
    h, rope = F.embedding(ids, table), model._rope(torch.arange(tokens, device=device))
    cache = h.new_empty(2, batch, model.config.kv_heads, tokens, model.config.head_dim)
    for block in model.model.layers:
        with visiting(block, device):
            h = block(h, rope, cache, 0)
    with visiting(model.model.norm, device):
        return F.linear(model.model.norm(h[:, -last:]), table)
