"""Random tensors on the tested device, and a comparison with limits on the error."""

import torch

from harness.measure.correctness import relative_error
from tests.interpreter import DEVICE

# Error limits by dtype, against the float64 reference; equal on all machines. Relative Frobenius error of outputs.
# float64 and float32: rounding, amplified by sums of a few hundred terms and LayerNorm's 1/std.
# bfloat16: inputs, output and matmul operands are rounded to 8 bits, 2e-3 each on average.
OUTPUT_ERROR = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE, dtype)


def rotated(x: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    """Rotate pairs (2i, 2i+1) of x [..., D] by angle [..., D/2]."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


def assert_close(got: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    error = relative_error(got, expected)
    assert error <= limit, f"relative error {error:.1e}"  # NaN fails too
