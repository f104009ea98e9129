"""An output gate and a reversed pass, which adapt TTT layers to a non-causal model.

Source: a video model, arXiv 2504.05298. Each block runs h = gated(layer)(x), then gated(reversed_time(layer))(h).
"""

from collections.abc import Callable

import torch
from torch import Tensor

Layer = Callable[[Tensor], Tensor]


def gated(layer: Layer, alpha: Tensor) -> Layer:
    """Return the layer x -> tanh(alpha) * layer(x) + x; x [B, T, C], alpha [C]."""
    return lambda x: torch.tanh(alpha) * layer(x) + x


def reversed_time(layer: Layer) -> Layer:
    """Return the layer x -> flip(layer(flip(x))), flips along T: `layer` sees reversed tokens."""
    return lambda x: layer(x.flip(1)).flip(1)
