"""What does the layer compute around its two learners: RoPE, learning rate, LayerNorm loss, activation?

Shapes: B batch, T tokens, H heads, D head dimension, m mini-batch size. Mathematics: arXiv 2407.04620, Section 2.7.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tk_kernels.checks import STATE_DTYPE, check_choice

EPS = 1e-6  # of every LayerNorm


@dataclass(frozen=True)
class Variant:
    """A relative of the layer; the default is the layer itself.

    layer_norm: whether f ends in a LayerNorm. activation: of TTT-MLP (TTT-Linear has none).
    residual: output q + f(q) and target v - k; otherwise output f(q) and target v.
    bias: whether f has biases; otherwise they are neither read nor changed.
    query: "updated" reads q with the weights after its own token, "initial" with those at the mini-batch's start.
    """

    layer_norm: bool = True
    activation: Literal["gelu", "relu"] = "gelu"
    residual: bool = True
    bias: bool = True
    query: Literal["updated", "initial"] = "updated"

    def __post_init__(self) -> None:
        check_choice("activation", self.activation, ("gelu", "relu"))
        check_choice("query", self.query, ("updated", "initial"))


THE_LAYER = Variant()


class Outer(NamedTuple):
    """What the outer loop has learned and all sequences share, in the state's dtype."""

    token_scale: Tensor  # [m], s_i
    ln_weight: Tensor  # [H, D]
    ln_bias: Tensor  # [H, D]


def token_scale(learnable_token_idx: Tensor) -> Tensor:
    """s_i = max(0, 1/(i+1) + learnable_token_idx_i), [m], at least float32."""
    idx = learnable_token_idx.to(STATE_DTYPE[learnable_token_idx.dtype])
    return (1 / torch.arange(1, len(idx) + 1, dtype=idx.dtype, device=idx.device) + idx).clamp_min(0)


def learning_rate(x: Tensor, weight: Tensor, bias: Tensor, base_lr: float, head_dim: int) -> Tensor:
    """lr = base_lr * sigmoid(x . w_h + c_h) / D (Section 2.7).

    x [..., C], weight [H, 1, C], bias [H, 1] -> [..., H], at least float32.
    """
    logits = F.linear(x, weight[:, 0].to(x.dtype)).to(STATE_DTYPE[x.dtype]) + bias[:, 0]
    return torch.sigmoid(logits) * (base_lr / head_dim)


def rope(x: Tensor, position: Tensor, theta: float = 10000.0) -> Tensor:
    """Rotate the interleaved pairs (2i, 2i+1) of x by position * theta^(-2i/D).

    x [B, T, H, D] with position [T] or [B, T], or x [B, H, D] with position [B]; the layer's position is t mod m.
    """
    dtype = STATE_DTYPE[x.dtype]
    exponent = torch.arange(0, x.shape[-1], 2, dtype=dtype, device=x.device) / x.shape[-1]
    angle = position.to(dtype)[..., None, None] * theta**-exponent
    cos, sin = angle.cos(), angle.sin()
    even, odd = x.to(dtype).unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2).to(x.dtype)


def loss_offset(k: Tensor, v: Tensor, outer: Outer, variant: Variant) -> Tensor:
    """All of the inner gradient that does not depend on Z: (bias - R) * weight with R = v - k; -R without LN.

    k, v [B, n, H, D] -> the same shape, in the state's dtype.
    """
    dtype = outer.ln_weight.dtype
    target = v.to(dtype) - k.to(dtype) if variant.residual else v.to(dtype)
    return (outer.ln_bias - target) * outer.ln_weight if variant.layer_norm else -target


def inner_gradient(z: Tensor, offset: Tensor, weight_squared: Tensor, variant: Variant = THE_LAYER) -> Tensor:
    """Gradient of 1/2 |LN(z) - R|^2 with respect to z, [..., D]; offset is loss_offset's. Three launches on a GPU."""
    if not variant.layer_norm:
        return z + offset
    shape = z.shape[-1:]
    normal, mean, rstd = torch.native_layer_norm(z, shape, None, None, EPS)
    # g = (weight * normal + bias - R) * weight, then (g - mean(g) - normal * mean(g * normal)) / std
    g = torch.addcmul(offset, normal, weight_squared)
    return torch.ops.aten.native_layer_norm_backward(g, z, shape, mean, rstd, None, None, [True, False, False])[0]


def ln_l2_grad(z: Tensor, target: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Gradient of 1/2 |weight * normalised(z) + bias - target|^2 with respect to z, [..., D]."""
    return inner_gradient(z, (bias - target) * weight, weight * weight)


def finish(z: Tensor, q: Tensor, outer: Outer, variant: Variant) -> Tensor:
    """out = q + LN(z), [B, n, H, D], in q's dtype."""
    if variant.layer_norm:
        z = torch.addcmul(outer.ln_bias, F.layer_norm(z, z.shape[-1:], eps=EPS), outer.ln_weight)
    return (z + q if variant.residual else z).to(q.dtype)


def activate(z: Tensor, variant: Variant) -> Tensor:
    """The activation of TTT-MLP: tanh-approximated GELU, or ReLU."""
    return F.gelu(z, approximate="tanh") if variant.activation == "gelu" else F.relu(z)


def activation_gradient(grad: Tensor, z: Tensor, variant: Variant) -> Tensor:
    """grad * activation'(z)."""
    if variant.activation == "gelu":
        return torch.ops.aten.gelu_backward(grad, z, approximate="tanh")
    return torch.ops.aten.threshold_backward(grad, z, 0)
