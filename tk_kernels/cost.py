"""FLOPs and bytes of one layer without its projections; a multiply-add is two FLOPs. No imports: works without torch.

D head dimension, F = 4D hidden units of TTT-MLP, m mini-batch size. LayerNorm, GELU and other elementwise parts are
O(F) per token and not counted.
"""

from itertools import pairwise
from typing import NamedTuple

from tk_kernels import FORMS


class StatePrecision(NamedTuple):
    """Bytes per weight: stored, read at every token, and moved in addition by a token that rewrites the weights.

    rows: bytes per element of the cached rows.
    """

    kept: int
    read: int
    rewrite: int
    rows: int


# planes: 15 of 16 tokens read the rounded upper half of a float32; a rewrite reads the lower half and writes both
STATE_PRECISIONS = {
    "planes": StatePrecision(4, 2, 6, 2),
    "float32": StatePrecision(4, 4, 4, 4),
    "float16": StatePrecision(2, 2, 2, 2),
    "bfloat16": StatePrecision(2, 2, 2, 2),
}
SUM_BYTES = BIAS_BYTES = 4  # per element of the primal form's gradient sums, and of the biases


class Cost:
    """The cost of one operator. widths: those of its layers' inputs and of the output, in head dimensions."""

    def __init__(self, *widths: int) -> None:
        pairs = list(pairwise(widths))
        self._weights = sum(inputs * outputs for inputs, outputs in pairs)  # times D^2
        self._backward = self._weights - pairs[0][0] * pairs[0][1]  # weights that G is multiplied with, times D^2
        self._biases = sum(outputs for _, outputs in pairs)  # times D
        self._row = sum(inputs + outputs for inputs, outputs in pairs)  # a token's inputs and gradients, times D

    def state_bytes(self, batch: int, heads: int, head_dim: int, element_bytes: int = 4) -> int:
        """Bytes of the weights and biases of all sequences and heads."""
        return batch * heads * (self._weights * head_dim + self._biases) * head_dim * element_bytes

    def forward_flops(self, batch: int, tokens: int, heads: int, head_dim: int, mini_batch: int = 16) -> int:
        """FLOPs of the dual form over `batch` sequences of `tokens` tokens.

        Per token and layer, with in x out weights: X @ W, Xbar @ W, X^T @ G and, except in the first layer, G @ W^T are
        2 in out each. Xbar @ X^T is 2 m in and (eta * ..) @ G is 2 m out, without a discount for causality.
        """
        products = 2 * (3 * self._weights + self._backward) * head_dim**2
        return batch * tokens * heads * (products + 2 * mini_batch * self._row * head_dim)

    def token_bytes(self, batch: int, tokens: int, heads: int, head_dim: int, element_bytes: int = 2) -> int:
        """Bytes of q, k, v (read) and z (written), [B, T, H, D] each."""
        return 4 * batch * tokens * heads * head_dim * element_bytes

    def forward_bytes(self, batch: int, tokens: int, heads: int, head_dim: int, element_bytes: int = 2) -> int:
        """Least bytes of a fused forward: q, k, v, z; lr in float32; weights and biases read and written in float32."""
        return (
            self.token_bytes(batch, tokens, heads, head_dim, element_bytes)
            + 4 * batch * tokens * heads
            + 2 * self.state_bytes(batch, heads, head_dim)
        )

    def generate_flops(self, batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual") -> float:
        """FLOPs of one token per sequence, averaged over a mini-batch.

        dual: the matmuls of forward with the weights; two matmuls per layer with (m+1)/2 rows, 2 in or 2 out per row.
        primal: X @ W, Xbar @ W_t, dW += X^T G and W - s dW, and G @ W^T as in forward.
        """
        _check("form", form, FORMS)
        times = 3 if form == "dual" else 4
        products = 2 * (times * self._weights + self._backward) * head_dim**2
        rows = (mini_batch + 1) * self._row * head_dim if form == "dual" else 0
        return batch * heads * (products + rows)

    def generate_state_bytes(
        self, batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual", state: str = "planes"
    ) -> int:
        """Bytes of the generate state of all sequences: weights in the precision `state`, biases in float32.

        The dual form adds m rows, the primal form the gradient sums.
        """
        precision = _precision(form, state)
        weights, biases = self._weights * head_dim**2, self._biases * head_dim
        rows, sums = mini_batch * self._row * head_dim * precision.rows, (weights + biases) * SUM_BYTES
        kept = weights * precision.kept + biases * BIAS_BYTES
        return batch * heads * (kept + (rows if form == "dual" else sums))

    def generate_state_traffic(
        self, batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual", state: str = "planes"
    ) -> float:
        """Least state bytes that one token per sequence moves, averaged over a mini-batch.

        Every token reads weights and biases, and one in m rewrites the weights. Dual form: a token reads (m-1)/2
        earlier rows and writes one. Primal form: a mini-batch reads and writes the gradient sums m-1 times.
        """
        precision = _precision(form, state)
        weights, biases = self._weights * head_dim**2, self._biases * head_dim
        rows = self._row * head_dim * precision.rows * ((mini_batch - 1) / 2 + 1)
        sums = 2 * (weights + biases) * SUM_BYTES * (mini_batch - 1) / mini_batch
        moved = weights * (precision.read + precision.rewrite / mini_batch) + biases * BIAS_BYTES
        return batch * heads * (moved + (rows if form == "dual" else sums))

    def generate_bytes(
        self, batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual", state: str = "planes"
    ) -> float:
        """Least bytes that one token per sequence moves: `generate_state_traffic`, and q, k, v and z in 16 bits."""
        traffic = self.generate_state_traffic(batch, heads, head_dim, mini_batch, form, state)
        return traffic + batch * heads * 8 * head_dim


def _precision(form: str, state: str) -> StatePrecision:
    """Return the precision with the name `state`. Raises ValueError for an unknown form or name."""
    _check("form", form, FORMS)
    _check("state", state, tuple(STATE_PRECISIONS))
    return STATE_PRECISIONS[state]


def _check(name: str, value: str, supported: tuple[str, ...]) -> None:
    if value not in supported:
        raise ValueError(f"{name} is {value!r}: supported are {', '.join(map(repr, supported))}")


COSTS = {"linear": Cost(1, 1), "mlp": Cost(1, 4, 1)}  # by learner
