"""Random tensors on the tested device, and a comparison with a limit on the error."""

import torch

from tests.interpreter import DEVICE


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(DEVICE, dtype)


def assert_close(got: torch.Tensor, expected: torch.Tensor, limit: float) -> None:
    assert got.shape == expected.shape
    error = (got.double() - expected).norm() / expected.norm().clamp_min(1e-30)
    assert error <= limit, f"relative error {error:.1e}"  # NaN fails too
