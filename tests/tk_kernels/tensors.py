"""Random tensors on the tested device, and a comparison with a limit on the error."""

import torch

from harness.measure.correctness import relative_error
from tests.interpreter import DEVICE


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE, dtype)


def rotated(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (2i, 2i+1) of x [..., D] by angle [..., D/2]."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def assert_close(got: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    error = relative_error(got, expected)
    assert error <= limit, f"relative error {error:.1e}"  # NaN fails too
