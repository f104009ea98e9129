"""RoPE, loss gradient and output of a TTT layer (ttt_layer.md, steps 2 and 5)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tk_kernels import ROPE_THETA

EPS = 1e-6  # for every LayerNorm
Rotation = tuple[Tensor, Tensor]  # cos, sin: see `rotation`


class Outer(NamedTuple):
    token_scale: Tensor  # [m], the factors s_i; all three are in the state's dtype
    ln_weight: Tensor  # [H, D]
    ln_bias: Tensor  # [H, D]


def rope(x: Tensor, position: Tensor) -> Tensor:
    """Return x with its interleaved pairs (2i, 2i+1) rotated by position * 10000^(-2i/D).

    x [B, T, H, D] with position [T] or [B, T], or x [B, H, D] with position [B]; in the layer, position is t mod m.
    """
    return rotate_interleaved(x, rotation(position, x.shape[-1], x.dtype))


def rotation(position: Tensor, head_dim: int, dtype: torch.dtype, theta: float = ROPE_THETA) -> Rotation:
    """Return (cos, sin) [*position.shape, 1, D/2] of position * theta^(-2i/D), at least float32."""
    dtype = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(0, head_dim, 2, device=position.device, dtype=dtype) / head_dim
    angle = position[..., None, None] * theta**-exponent
    return angle.cos(), angle.sin()


def rotate_interleaved(x: Tensor, rotated_by: Rotation) -> Tensor:
    """Return x [..., H, D] in its dtype, with pairs (2i, 2i+1) rotated by cos, sin [..., 1, D/2]."""
    cos, sin = rotated_by
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def gradient_offset(k: Tensor, v: Tensor, outer: Outer) -> Tensor:
    """Return (ln_bias - (v - k)) * ln_weight, `ln_l2_grad`'s `offset`, for k, v [B, n, H, D]."""
    dtype = outer.ln_weight.dtype
    return (outer.ln_bias - (v.to(dtype) - k.to(dtype))) * outer.ln_weight


def ln_l2_grad(z: Tensor, offset: Tensor, weight_squared: Tensor) -> Tensor:
    """Return the gradient of 1/2 |LN(z) - (v - k)|^2 with respect to z [..., D].

    offset: (ln_bias - (v - k)) * ln_weight, in z's shape. weight_squared: ln_weight^2.
    With xhat = (z - mean(z)) / std(z) and g = weight_squared * xhat + offset, the gradient is
    (g - mean(g) - xhat * mean(g * xhat)) / std(z). Means are over D.
    """
    shape = z.shape[-1:]
    xhat, mean, rstd = torch.native_layer_norm(z, shape, None, None, EPS)
    g = torch.addcmul(offset, xhat, weight_squared)
    return torch.ops.aten.native_layer_norm_backward(g, z, shape, mean, rstd, None, None, [True, False, False])[0]


def output(z: Tensor, q: Tensor, outer: Outer) -> Tensor:
    """Return the layer's output q + LN(z) in q's dtype, for q and z [B, n, H, D]."""
    normed = torch.addcmul(outer.ln_bias, F.layer_norm(z, z.shape[-1:], eps=EPS), outer.ln_weight)
    return (normed + q).to(q.dtype)
