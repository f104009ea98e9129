"""Error limits by dtype, against the float64 reference; equal on all machines."""

import torch

# Relative Frobenius error of outputs.
# float64 and float32: rounding, amplified by sums of a few hundred terms and LayerNorm's 1/std.
# bfloat16: inputs, output and matmul operands are rounded to 8 bits, 2e-3 each on average.
OUTPUT_ERROR = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 1e-2}
