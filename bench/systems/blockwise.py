"""Run a model on a GPU one block at a time, with its weights on the host."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.transformer import Transformer, causal_attention
from bench.models.ttt import TTTModel

Model = TypeVar("Model", bound=nn.Module)


def to_host(model: Model) -> Model:
    """Move a model's weights to host memory, pinned if there is a GPU; return the model."""
    pinned = torch.cuda.is_available()
    model.to("cpu")
    for weight in model.parameters() if pinned else ():
        weight.data = weight.data.pin_memory()
    return model


@contextmanager
def visiting(block: nn.Module, device: torch.device) -> Iterator[None]:
    """Copy a block's weights and buffers to `device` inside the context; restore them after."""
    held = (*block.parameters(), *block.buffers())
    away = [(weight, weight.data) for weight in held if weight.device.type != device.type]
    try:
        for weight, home in away:
            weight.data = home.to(device)
        yield
    finally:
        for weight, home in away:
            weight.data = home


@torch.no_grad()
def transformer_logits(model: Transformer, ids: Tensor, last: int, device: torch.device) -> Tensor:
    """Return logits [B, last, V] of ids [B, T]; the model's weights can be on the host."""
    table = model.model.embed_tokens.weight.to(device)
    h, rope = F.embedding(ids.to(device), table), model._rope(torch.arange(ids.shape[1], device=device))
    for block in model.model.layers:
        with visiting(block, device):
            h = block(h, rope, causal_attention)
    with visiting(model.model.norm, device):
        return F.linear(model.model.norm(h[:, -last:]), table)


@torch.no_grad()
def ttt_logits(model: TTTModel, ids: Tensor, last: int, device: torch.device) -> Tensor:
    """Return logits [B, last, V] of ids [B, T]; the model's weights can be on the host."""
    h = F.embedding(ids.to(device), model.model.embed_tokens.weight.to(device))
    rope = model.rope_cos.to(device), model.rope_sin.to(device)
    for block in model.blocks:
        with visiting(block, device):
            h = block(h, rope, model.layer_state(block, len(ids)), partial(model.operator.forward, start=0))
    with visiting(model.model.norm, device):
        return F.linear(model.model.norm(h[:, -last:]), model.head.to(device))
