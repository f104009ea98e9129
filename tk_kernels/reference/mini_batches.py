"""Lay out and multiply whole mini-batches with few launches and bounded memory.

Shapes: N mini-batches of m tokens; batch B and heads H are one dimension B*H, as torch.bmm needs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BIAS_INPUTS = 8  # one input that is always 1, and seven zeros that keep bfloat16 rows 16-byte aligned


def tiled(x: Tensor, mini_batch: int) -> Tensor:
    """Return x [B, N*m, H, ...], rearranged to [N, B*H, m, ...]; `mini_batch` is m."""
    return x.unflatten(1, (-1, mini_batch)).movedim(1, 0).transpose(2, 3).flatten(1, 2)


def untiled(x: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    """Return x [N*B*H, m, D] as [B, N*m, H, D], the inverse of `tiled`; sizes: (N, B, H)."""
    return x.unflatten(0, sizes).transpose(2, 3).movedim(0, 1).flatten(1, 2)


def with_bias_input(x: Tensor) -> Tensor:
    """Append 1 and seven 0s to each row of x [..., D], so that a matmul by `stacked(W, b)` adds b."""
    x = F.pad(x, (0, BIAS_INPUTS))
    x[..., -BIAS_INPUTS] = 1.0
    return x


def stacked(weight: Tensor, bias: Tensor) -> Tensor:
    """Stack weight [B, H, D, F], bias [B, H, F] and seven rows of zeros to [B*H, D + 8, F]."""
    rows = torch.cat((weight, bias.unsqueeze(2)), 2).flatten(0, 1)
    return F.pad(rows, (0, 0, 0, BIAS_INPUTS - 1))


def unstack_(matrix: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Copy `matrix`, a result of `stacked`, back into weight and bias, in place."""
    inputs = weight.shape[2]
    weight.copy_(matrix[:, :inputs].unflatten(0, weight.shape[:2]))
    bias.copy_(matrix[:, inputs].unflatten(0, bias.shape[:2]))


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched matmul a @ b; bfloat16 inputs give float32 sums and results."""
    if a.dtype != torch.bfloat16:
        return torch.bmm(a, b)
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def subtract_matmul_(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Subtract a @ b from `total` in place; return `total`, which is float32 for bfloat16 a and b."""
    if torch.compiler.is_compiling():  # tracing does not support baddbmm with an out_dtype
        return total.sub_(matmul(a, b))
    if a.dtype == torch.bfloat16 and a.is_cuda:
        return torch.baddbmm(total, a, b, out_dtype=torch.float32, alpha=-1, out=total)
    return total.baddbmm_(a.to(total.dtype), b.to(total.dtype), alpha=-1)


def read_layer(x: Tensor, weights: Tensor, rows: Tensor, gradients: Tensor, eta: Tensor) -> Tensor:
    """Return x @ W - (eta * (x @ rows^T)) @ gradients, one layer's output in the dual form.

    All tensors are [N*B*H, ...]. x, rows: the layer's inputs for queries and for keys, from `with_bias_input`.
    weights: W, from `stacked`. gradients: loss gradients at the layer's output for keys, without lr.
    eta [N*B*H, m, m]: token_scale[i] * lr[j] for j <= i, otherwise 0.
    """
    return subtract_matmul_(matmul(x, weights), (matmul(x, rows.mT) * eta).to(x.dtype), gradients)
