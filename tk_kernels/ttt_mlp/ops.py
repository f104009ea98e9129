"""TTT-MLP forward on Hopper, Triton and PyTorch backends; see `ForwardOperator.forward`."""

from tk_kernels.forward.operator import ForwardOperator
from tk_kernels.ttt_mlp import forward as portable
from tk_kernels.ttt_mlp.reference import MLP

KERNELS = {16: "ttt_mlp/forward_sm90", 32: "ttt_mlp/forward_32_sm90"}  # for Hopper, by mini-batch

OPERATOR = ForwardOperator("mlp", MLP, (1, 4, 1), KERNELS, portable.launch)
available, choice, forward = OPERATOR.available, OPERATOR.choice, OPERATOR.forward
