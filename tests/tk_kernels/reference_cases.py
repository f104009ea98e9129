"""What do the tests of the references compare, and with what? Random cases and a naive transcription of the layer."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tk_kernels.reference.layer import THE_LAYER, Variant
from tk_kernels.ttt_linear import reference as ttt_linear
from tk_kernels.ttt_mlp import reference as ttt_mlp

torch.set_num_threads(1)  # the cases are so small that threads only wait for each other

OPERATORS: dict[str, Any] = {"linear": ttt_linear, "mlp": ttt_mlp}


class Case(NamedTuple):
    """Arguments of forward, in its order: tokens, outer parameters, first state."""

    q: Tensor
    k: Tensor
    v: Tensor
    lr: Tensor
    token_scale: Tensor
    ln_weight: Tensor
    ln_bias: Tensor
    state: Any

    def tokens(self, at: Any) -> tuple[Tensor, ...]:
        """q, k, v, lr at a token (an integer) or a slice of tokens."""
        return tuple(x[:, at] for x in self[:4])

    def outer(self) -> tuple[Tensor, ...]:
        return self[4:7]


def case(
    operator: str,
    tokens: int = 35,
    *,
    batch: int = 2,
    heads: int = 2,
    head_dim: int = 16,
    mini_batch: int = 16,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Case:
    """Random arguments; the same numbers for every dtype, but for their rounding to it."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, std: float = 1.0) -> Tensor:
        return std * torch.randn(*shape, generator=generator, dtype=torch.float64)

    wide = torch.float64 if dtype == torch.float64 else torch.float32
    q, k, v = (normal(batch, tokens, heads, head_dim).bfloat16().to(dtype) for _ in range(3))
    lr = (torch.sigmoid(normal(batch, tokens, heads)) / head_dim).to(wide)
    token_scale = (1 / torch.arange(1, mini_batch + 1) + normal(mini_batch, std=0.01)).clamp_min(0.01).to(wide)
    ln_weight, ln_bias = (1 + normal(heads, head_dim, std=0.1)).to(wide), normal(heads, head_dim, std=0.1).to(wide)
    widths = (head_dim, head_dim) if operator == "linear" else (head_dim, 4 * head_dim, head_dim)
    weights = [normal(heads, *shape, std=0.1) for i, o in pairwise(widths) for shape in ((i, o), (1, o))]
    state = OPERATORS[operator].init_state(*weights, batch, mini_batch, wide)
    for rows in state[len(weights) : -1]:  # rows beyond the position are don't-care
        rows.copy_(normal(*rows.shape))
    return Case(q, k, v, lr, token_scale, ln_weight, ln_bias, state)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LN over the last dimension, biased variance, by its definition."""
    centred = x - x.mean(-1, keepdim=True)
    return weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() + bias


def predict(x: Tensor, weights: tuple[Tensor, ...], ln: tuple[Tensor, Tensor], variant: Variant) -> Tensor:
    """f(x) for one token x [D], straight from its definition."""
    for layer, (weight, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
        if layer:
            x = F.gelu(x, approximate="tanh") if variant.activation == "gelu" else F.relu(x)
        x = x @ weight + (bias if variant.bias else 0)
    return layer_norm(x, *ln) if variant.layer_norm else x


def naive(operator: str, case: Case, variant: Variant = THE_LAYER) -> Tensor:
    """The outputs of a case by the definition: token by token, one head at a time, gradients by autograd."""
    out = torch.empty_like(case.q)
    names = ("W", "b") if operator == "linear" else ("W1", "b1", "W2", "b2")
    for row in range(len(case.q)):
        for head in range(case.q.shape[2]):
            weights = tuple(getattr(case.state, name)[row, head] for name in names)
            ln = (case.ln_weight[head], case.ln_bias[head])
            out[row, :, head] = _naive_head([x[row, :, head] for x in case[:4]], case.token_scale, ln, weights, variant)
    return out


def _naive_head(
    tokens: list[Tensor], scale: Tensor, ln: tuple[Tensor, Tensor], weights: tuple[Tensor, ...], variant: Variant
) -> Tensor:
    def loss(weights: tuple[Tensor, ...], k: Tensor, v: Tensor) -> Tensor:
        target = v - k if variant.residual else v
        return (predict(k, weights, ln, variant) - target).square().sum() / 2

    gradient: Callable[..., tuple[Tensor, ...]] = torch.func.grad(loss)
    outputs = []
    for t, (q, k, v, lr) in enumerate(zip(*tokens, strict=True)):
        i = t % len(scale)
        if i == 0:
            start, sums = weights, [torch.zeros_like(w) for w in weights]
        sums = [total + lr * step for total, step in zip(sums, gradient(start, k, v), strict=True)]
        weights = tuple(w - scale[i] * total for w, total in zip(start, sums, strict=True))
        z = predict(q, weights if variant.query == "updated" else start, ln, variant)
        outputs.append(q + z if variant.residual else z)
    return torch.stack(outputs)


def valid(state: Any) -> list[Tensor]:
    """The tensors of a state with the rows that do not count set to 0, so that states can be compared."""
    count = state.position[:, None, None, None]
    return [
        torch.where(torch.arange(x.shape[2])[:, None] < count, x, 0) if name.endswith("rows") else x
        for name, x in zip(state._fields, state, strict=True)
    ]


def generate(operator: str, case: Case, state: Any, first: int = 0, **options: Any) -> tuple[Tensor, Any]:
    """Outputs [B, T - first, H, D] and last state of generate steps over the tokens from first on."""
    outputs = [case.q[:, :0]]
    for t in range(first, case.q.shape[1]):
        out, state = OPERATORS[operator].generate_step(*case.tokens(t), *case.outer(), state, **options)
        outputs.append(out[:, None])
    return torch.cat(outputs, 1), state
