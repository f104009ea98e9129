"""TTT-Linear forward on Hopper, Triton and PyTorch backends; see `ForwardOperator.forward`."""

from torch import Tensor

from tk_kernels.forward.common import sm_count
from tk_kernels.forward.operator import ForwardOperator
from tk_kernels.ttt_linear import forward as portable
from tk_kernels.ttt_linear.reference import LINEAR

KERNELS = dict.fromkeys((16, 32), "ttt_linear/forward_sm90")  # for Hopper, by mini-batch


def schedule(q: Tensor, mini_batch: int) -> tuple[int, int]:
    """Return (warps per head, heads per thread block) of the Hopper kernel, for q [B, T, H, D]."""
    return (4, 1) if q.shape[0] * q.shape[2] <= 2 * sm_count(q) or mini_batch > 16 else (2, 4)


OPERATOR = ForwardOperator("linear", LINEAR, (1, 1), KERNELS, portable.launch, schedule)
available, choice, forward = OPERATOR.available, OPERATOR.choice, OPERATOR.forward
