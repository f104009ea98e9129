"""Layers that several models share; initial weights and NVTX ranges."""

import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from bench.models.config import CONV_KERNEL
from harness.measure.ranges import OPERATOR, is_recorded, layer_name, nvtx_range
from tk_kernels.reference.layer import Rotation

INITIALIZER_RANGE = 0.02


def round_up(count: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple


class _Ranges:
    enabled = False  # ranges slow eager runs


def enable_layer_ranges(enabled: bool) -> None:
    """Switch the NVTX ranges of layers and inner loops on or off, for all models."""
    _Ranges.enabled = enabled


def layer_range(index: int) -> AbstractContextManager[object]:
    """Return a layer's NVTX range if ranges are on or PyTorch records them, else a no-op."""
    return nvtx_range(layer_name(index)) if _Ranges.enabled or is_recorded() else nullcontext()


def operator_range() -> AbstractContextManager[object]:
    """Return an inner loop's NVTX range if ranges are on or PyTorch records them, else a no-op."""
    return nvtx_range(OPERATOR) if _Ranges.enabled or is_recorded() else nullcontext()


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return float32, or float64 if `dtype` is float64."""
    return torch.promote_types(dtype, torch.float32)


def linear(inputs: int, outputs: int, device: torch.device, dtype: torch.dtype) -> nn.Linear:
    """Return a projection without bias, uninitialized, because the caller fills it."""
    return skip_init(nn.Linear, inputs, outputs, bias=False, device=device, dtype=dtype)


def parameter(shape: Iterable[int], device: torch.device, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(tuple(shape), device=device, dtype=dtype))


class SwiGLU(nn.Module):
    """The feed-forward layer `down(silu(gate(x)) * up(x))`, without biases."""

    def __init__(self, width: int, ffn_width: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_proj = linear(width, ffn_width, device, dtype)
        self.up_proj = linear(width, ffn_width, device, dtype)
        self.down_proj = linear(ffn_width, width, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class CausalConv(nn.Module):
    """Depthwise convolution over four tokens, with bias; weight [C, 1, 4] for C channels."""

    def __init__(self, width: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = parameter((width, 1, CONV_KERNEL), device, dtype)
        self.bias = parameter((width,), device, dtype)

    def forward(self, window: Tensor) -> Tensor:
        """Return outputs [B, T, C]. window [B, T + 3, C]: three previous tokens, then the T tokens."""
        return F.conv1d(window.transpose(1, 2), self.weight, self.bias, groups=self.bias.shape[0]).transpose(1, 2)


def slide(cache: Tensor, x: Tensor) -> Tensor:
    """Prepend the three cached tokens to x [B, T, C], and cache the last three of the result.

    cache [B, 3, C]: overwritten in place. Returns [B, 3 + T, C].
    """
    window = torch.cat((cache, x), dim=1)
    cache.copy_(window[:, -cache.shape[1] :])
    return window


def empty_conv_cache(batch: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return an empty cache for a convolution's last three inputs: zeros [B, 3, C]."""
    return torch.zeros(batch, CONV_KERNEL - 1, width, device=device, dtype=dtype)


def rotate_halves(x: Tensor, rotated_by: Rotation) -> Tensor:
    """Rotate channel pairs (i, i + D/2) of x [B, T, H, D] by RoPE's cos and sin [T, 1, D/2]."""
    cos, sin = rotated_by
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


_ONES = re.compile(r"norm[._]weight$")
_ZEROS = re.compile(r"(norm[._]bias|\.b1|\.b2|learnable_token_idx|learnable_ttt_lr_bias)$")
_CONVOLUTION = re.compile(r"conv(_q|_k)?\.(weight|bias)$")


@torch.no_grad()
def fill_with_initial_weights(module: nn.Module, generator: torch.Generator) -> None:
    """Draw parameters from the authors' initial distributions, in `named_parameters` order.

    Values are drawn in float32 and rounded, so a seed gives the same weights in every dtype.
    """
    for name, weight in module.named_parameters():
        drawn = torch.empty(weight.shape, device=weight.device, dtype=torch.float32)
        if _ONES.search(name):
            drawn.fill_(1.0)
        elif _ZEROS.search(name):
            drawn.zero_()
        elif _CONVOLUTION.search(name):
            bound = CONV_KERNEL**-0.5
            drawn.uniform_(-bound, bound, generator=generator)
        else:
            drawn.normal_(0.0, INITIALIZER_RANGE, generator=generator)
        weight.copy_(drawn)
