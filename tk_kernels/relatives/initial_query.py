"""TTT-Linear whose queries read the weights of the mini-batch's start, as in titans-pytorch.

out_t = q_t + LN(q_t @ W + b) with W and b of the mini-batch's start. Unlike TTT-Linear, a token's output does not
depend on the keys and values of its mini-batch.
"""

from functools import partial

from tk_kernels.reference import naive

forward = partial(naive.forward, naive.linear, read_updated=False)  # arguments and results: see `naive.forward`
