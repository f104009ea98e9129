"""How far a result may be from the float64 reference: one table by dtype, never relaxed for a machine."""

import torch

# Relative Frobenius error of outputs.
# float64: rounding (1e-16) times sums of a few hundred terms and the 1/std of LayerNorm.
# float32: the same with 6e-8; measured 2e-7.
# bfloat16: inputs and output are rounded to 8 bits (2e-3 on average) and the products inside once more; measured 4e-3.
OUTPUT_ERROR = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2}


def relative_error(x: torch.Tensor, reference: torch.Tensor) -> float:
    """|x - reference| / |reference| in the Frobenius norm; NaN if either holds one."""
    x, reference = x.double(), reference.double()
    if not reference.numel():
        return 0.0
    return ((x - reference).norm() / reference.norm().clamp_min(1e-300)).item()
