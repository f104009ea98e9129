"""The inner gradient matches autograd, and RoPE matches complex rotation."""

import pytest
import torch
from tensors import OUTPUT_ERROR, rotated

from harness.measure.correctness import relative_error
from tk_kernels.reference.layer import ln_l2_grad, rope
from tk_kernels.reference.naive import layer_norm

EXACT = OUTPUT_ERROR[torch.float64]
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


@pytest.mark.parametrize("head_dim", [4, 16, 64, 96])
@pytest.mark.parametrize("std", [1e-3, 1.0, 1e3])  # 1e-3 is sqrt(eps)
def test_inner_gradient_is_autograd_of_the_loss(head_dim: int, std: float) -> None:
    k, v = random(3, 5, head_dim), random(3, 5, head_dim)
    weight, bias = 1 + 0.1 * random(head_dim), 0.1 * random(head_dim)
    z = (std * random(3, head_dim, 5).mT).requires_grad_()  # not contiguous
    loss = (layer_norm(z, weight, bias) - (v - k)).square().sum() / 2
    (expected,) = torch.autograd.grad(loss, z)
    offset = (bias - (v - k)) * weight
    assert relative_error(ln_l2_grad(z.detach(), offset, weight * weight), expected) < EXACT


def test_rope_rotates_interleaved_pairs() -> None:
    x, position = random(2, 5, 3, 8), torch.arange(5)
    angle = torch.tensor([[p * 1e4 ** (-2 * i / 8) for i in range(4)] for p in range(5)], dtype=torch.float64)
    expected = rotated(x, angle[:, None])
    assert relative_error(rope(x, position), expected) < EXACT
    assert relative_error(rope(x, position[None].expand(2, 5)), expected) < EXACT


def test_rope_with_one_position_a_sequence() -> None:
    x, position = random(3, 2, 8), torch.tensor([0, 7, 15], dtype=torch.int32)
    apart = [rope(x[i : i + 1, None], position[i : i + 1])[:, 0] for i in range(3)]
    assert relative_error(rope(x, position), torch.cat(apart)) < EXACT
    assert torch.equal(rope(x, position)[0], x[0])
    assert rope(x.bfloat16(), position).dtype == torch.bfloat16
