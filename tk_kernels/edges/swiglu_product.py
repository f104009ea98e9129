"""A GEMM with SwiGLU: one kernel for many rows on Hopper, otherwise cuBLAS and a SwiGLU kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tk_kernels import build
from tk_kernels.edges.norms_and_gates import swiglu

KERNEL = "edges/swiglu_product_sm90"
LEAST_ROWS = 256  # with fewer rows the GEMM is memory-bound, and cuBLAS has smaller tiles
MULTIPLE = 64  # outputs and inputs must be multiples of this


def available() -> str:
    """Return why the Hopper kernel cannot run, or ""."""
    return build.unavailable_on(-1, KERNEL)


def swiglu_product(x: Tensor, weights: Tensor, *, concurrent: bool = False) -> Tensor:
    """Return silu(x Wg^T) * (x Wu^T), [..., F] in x's dtype, for x [..., C].

    weights [2 F, C]: Wg's rows, then Wu's. Sums are float32. If `fits` is False, cuBLAS also rounds x Wg^T and x Wu^T.
    concurrent: whether other kernels run at the same time. If so, thread blocks that start late compute fewer tiles.
    """
    rows = x.flatten(0, -2)
    if not fits(rows, weights):
        return swiglu(F.linear(x, weights))
    hidden = torch.empty(len(rows), len(weights) // 2, dtype=x.dtype, device=x.device)
    taken = torch.zeros(1 if concurrent else 0, dtype=torch.int32, device=x.device)
    _swiglu_product(rows, weights, hidden, taken)
    return hidden.unflatten(0, x.shape[:-1])


def fits(rows: Tensor, weights: Tensor) -> bool:
    """Whether `swiglu_product` uses the Hopper kernel for rows [M, C] and weights [2 F, C]."""
    outputs, inputs = len(weights) // 2, weights.shape[1]
    return (
        rows.is_cuda
        and weights.device == rows.device
        and rows.dtype == weights.dtype == torch.bfloat16
        and len(rows) >= LEAST_ROWS
        and outputs % MULTIPLE == 0
        and inputs % MULTIPLE == 0
        and rows.is_contiguous()
        and weights.is_contiguous()
        and not (rows.data_ptr() | weights.data_ptr()) % 16  # TMA needs multiples of 16 bytes
        and not build.unavailable_on(rows.device, KERNEL)
    )


@torch.library.custom_op("ttt_bench::swiglu_product", mutates_args=("hidden", "taken"))
def _swiglu_product(rows: Tensor, weights: Tensor, hidden: Tensor, taken: Tensor) -> None:
    with torch.cuda.device(rows.device):
        build.load(KERNEL).forward(rows, weights, hidden, taken)
