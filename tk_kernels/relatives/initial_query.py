"""TTT-Linear whose queries read the weights of their mini-batch's start, the simplification in titans-pytorch.

out_t = q_t + LN(q_t @ W + b) with W and b of the mini-batch's start. Unlike TTT-Linear it has no matmul of queries
and keys, and a token does not see its own mini-batch.
"""

from torch import Tensor

from tk_kernels.relatives.inner_loop import Weights, run
from tk_kernels.ttt_linear.naive import layer_norm


def forward(
    weights: Weights,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
) -> Tensor:
    """Return the outputs [T, D] of one head.

    weights: W [D, D], b [D]. q, k, v [T, D], lr [T], token_scale [m], ln_weight, ln_bias [D].
    """

    def f(x: Tensor, weights: Weights) -> Tensor:
        W, b = weights
        return layer_norm(x @ W + b, ln_weight, ln_bias)

    def loss(weights: Weights, k: Tensor, v: Tensor) -> Tensor:
        return (f(k, weights) - (v - k)).square().sum() / 2

    return q + run(f, loss, weights, q, k, v, lr, token_scale, read_updated=False)
