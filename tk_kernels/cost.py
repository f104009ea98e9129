"""Count FLOPs and bytes of the TTT operator (ttt_layer.md, "Inside TTT", step 5). Needs no torch.

A multiply-add is two FLOPs. LayerNorm, GELU and other elementwise operations are not counted.
D: head dimension. F = 4D: hidden units of TTT-MLP. m: mini-batch size. in, out: a layer's widths.
X, Xbar: a layer's inputs for K and for Q. G: the loss's gradient at the layer's output. s: a token's scale.
"""

from itertools import pairwise

from tk_kernels import FORMS, check_choice

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
SUM_BYTES = BIAS_BYTES = 4  # bytes per element of the gradient sums (primal form) and of the biases


class Cost:
    """Formulas for FLOPs and bytes of TTT-Linear or TTT-MLP; the methods take the sizes of a problem.

    widths: the inner model's widths from input to output, as multiples of the head dimension; (1, 4, 1) for TTT-MLP.
    """

    def __init__(self, *widths: int) -> None:
        pairs = list(pairwise(widths))
        self._weights = sum(inputs * outputs for inputs, outputs in pairs)  # number of weights / D^2
        self._backward = self._weights - pairs[0][0] * pairs[0][1]  # number of weights after layer 1 / D^2
        self._biases = sum(outputs for _, outputs in pairs)  # number of biases / D
        self._row = sum(inputs + outputs for inputs, outputs in pairs)  # elements of a token's cached rows / D

    def state_bytes(self, batch: int, heads: int, head_dim: int, element_bytes: int = 4) -> int:
        """Return the bytes of weights and biases of all sequences and heads, `element_bytes` per element."""
        return batch * heads * (self._weights * head_dim + self._biases) * head_dim * element_bytes

    def forward_flops(self, batch: int, tokens: int, heads: int, head_dim: int, mini_batch: int = 16) -> int:
        """Return the FLOPs of the dual form over `batch` sequences of `tokens` tokens each.

        Per token and head, X @ W, Xbar @ W, X^T @ G and (except in layer 1) G @ W^T take 2 * in * out each.
        P = Xbar @ X^T takes 2 * m * in, P @ G takes 2 * m * out, both including the masked elements of P.
        """
        matmuls = 2 * (3 * self._weights + self._backward) * head_dim**2
        return batch * tokens * heads * (matmuls + 2 * mini_batch * self._row * head_dim)

    def forward_bytes(self, batch: int, tokens: int, heads: int, head_dim: int, element_bytes: int = 2) -> int:
        """Return the minimum bytes that a fused forward reads and writes.

        Counts q, k, v, output (`element_bytes` per element) and lr (float32) once, float32 weights and biases twice.
        """
        token = 4 * head_dim * element_bytes + 4
        return batch * tokens * heads * token + 2 * self.state_bytes(batch, heads, head_dim)

    def generate_flops(self, batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual") -> float:
        """Return the FLOPs of a generate step of `batch` sequences, averaged over a mini-batch.

        Dual: as `forward_flops`, but P = Xbar @ X^T and P @ G count only the (m+1)/2 unmasked elements of P per token.
        Primal: X @ W, dW += X^T @ G, W_t = W - scale * dW, Xbar @ W_t, and G @ W^T (not in layer 1); 2 * in * out each.
        """
        check_choice("form", form, FORMS)
        times = 3 if form == "dual" else 4
        matmuls = 2 * (times * self._weights + self._backward) * head_dim**2
        rows = (mini_batch + 1) * self._row * head_dim if form == "dual" else 0
        return batch * heads * (matmuls + rows)

    def generate_state_bytes(
        self, batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual", state: str = "planes"
    ) -> int:
        """Return the bytes of all states: weights, biases, and cached rows or gradient sums.

        state: dtype of the weights: "float32", "float16", "bfloat16" or "planes" (float32 as two 16-bit tensors).
        Dual form: cached rows; primal: float32 gradient sums. Biases are float32. ValueError on unknown form or state.
        """
        stored, read, _ = _weight_bytes(form, state)  # `read` is also the size of a cached row's element
        weights, biases = self._weights * head_dim**2, self._biases * head_dim
        rows, sums = mini_batch * self._row * head_dim * read, (weights + biases) * SUM_BYTES
        parameters = weights * stored + biases * BIAS_BYTES
        return batch * heads * (parameters + (rows if form == "dual" else sums))

    def generate_state_traffic(
        self, batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual", state: str = "planes"
    ) -> float:
        """Return the minimum bytes of state that a generate step moves, averaged over a mini-batch.

        Each step reads the biases, and the weights or their high plane. The last of m steps also reads the low plane,
        if any, and writes the weights. A dual step also reads the rows of (m-1)/2 earlier tokens on average and writes
        its own. A primal step also reads and writes the gradient sums; the first reads none, the last writes none.
        """
        _, read, rewrite = _weight_bytes(form, state)
        weights, biases = self._weights * head_dim**2, self._biases * head_dim
        rows = self._row * head_dim * read * ((mini_batch - 1) / 2 + 1)
        sums = 2 * (weights + biases) * SUM_BYTES * (mini_batch - 1) / mini_batch
        moved = weights * (read + rewrite / mini_batch) + biases * BIAS_BYTES
        return batch * heads * (moved + (rows if form == "dual" else sums))

    def generate_bytes(
        self, batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual", state: str = "planes"
    ) -> float:
        """Return a step's minimum bytes: `generate_state_traffic`, and 16-bit q, k, v and output."""
        traffic = self.generate_state_traffic(batch, heads, head_dim, mini_batch, form, state)
        return traffic + batch * heads * 8 * head_dim


def _weight_bytes(form: str, state: str) -> tuple[int, int, int]:
    """Return bytes per weight: (stored, read per step, extra traffic of every m-th step)."""
    check_choice("form", form, FORMS)
    check_choice("state", state, ("planes", *ELEMENT_BYTES))
    if state == "planes":  # each token reads the high plane; a mini-batch's last one also reads low, writes both
        return 4, 2, 6
    size = ELEMENT_BYTES[state]
    return size, size, size


COSTS = {"linear": Cost(1, 1), "mlp": Cost(1, 4, 1)}  # by operator
