"""FLOPs and bytes of TTT-MLP: one layer without its projections; a multiply-add is two FLOPs.

D head dimension, F = 4D hidden, m mini-batch size. LayerNorm, GELU and other elementwise parts are O(F) per token and
not counted.
"""

from typing import Any

from tk_kernels.generate.traffic import Learner, check_form_name, kept_bytes, moved_bytes

HIDDEN = 4  # F / D


def state_bytes(batch: int, heads: int, head_dim: int, element_bytes: int = 4) -> int:
    """Bytes of W1 [D, F], W2 [F, D], b1 [F] and b2 [D] of all sequences and heads."""
    hidden = HIDDEN * head_dim
    return batch * heads * (2 * head_dim * hidden + hidden + head_dim) * element_bytes


def forward_flops(batch: int, tokens: int, heads: int, head_dim: int, mini_batch: int = 16) -> int:
    """FLOPs of the dual form over `batch` sequences of `tokens` tokens.

    Per token: K@W1, X2@W2, G2@W2^T, Q@W1, X2bar@W2, K^T@G1 and X2^T@G2 are 2DF each.
    Q@K^T and (..)@G2 are 2mD each, (..)@G1 and X2bar@X2^T are 2mF each, without a discount for causality.
    """
    hidden = HIDDEN * head_dim
    return batch * tokens * heads * (14 * head_dim * hidden + 4 * mini_batch * (head_dim + hidden))


def token_bytes(batch: int, tokens: int, heads: int, head_dim: int, element_bytes: int = 2) -> int:
    """Bytes of q, k, v (read) and z (written), [B, T, H, D] each."""
    return 4 * batch * tokens * heads * head_dim * element_bytes


def forward_bytes(batch: int, tokens: int, heads: int, head_dim: int, element_bytes: int = 2) -> int:
    """Least bytes a fused forward moves: q, k, v, z; lr in float32; weights and biases read and written in float32."""
    return (
        token_bytes(batch, tokens, heads, head_dim, element_bytes)
        + 4 * batch * tokens * heads
        + 2 * state_bytes(batch, heads, head_dim)
    )


def generate_flops(batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual") -> float:
    """FLOPs of one token per sequence, averaged over a mini-batch.

    dual: the seven matmuls of forward, 2DF each; four matmuls with (m+1)/2 rows, 2(D + F) per row in each layer.
    primal: five matmuls with the weights, and dW += x^T g and W - s dW for each of two layers, 2DF each.
    """
    check_form_name(form)
    hidden = HIDDEN * head_dim
    dual = 14 * head_dim * hidden + 2 * (mini_batch + 1) * (head_dim + hidden)
    return batch * heads * (dual if form == "dual" else 18 * head_dim * hidden)


def learner(head_dim: int) -> Learner:
    """Number of elements per head: of W1 and W2, of b1 and b2, and of the rows of K, X2, G1 and G2 for one token."""
    hidden = HIDDEN * head_dim
    return Learner(2 * head_dim * hidden, hidden + head_dim, 2 * (head_dim + hidden))


def generate_state_bytes(batch: int, heads: int, head_dim: int, *how: Any, **more: Any) -> int:
    """Bytes of the generate state of all sequences; how, more: further arguments of `traffic.kept_bytes`."""
    return batch * heads * kept_bytes(learner(head_dim), *how, **more)


def generate_state_traffic(batch: int, heads: int, head_dim: int, *how: Any, **more: Any) -> float:
    """Least state bytes that one token per sequence moves; how, more: further arguments of `traffic.moved_bytes`."""
    return batch * heads * moved_bytes(learner(head_dim), *how, **more)


def generate_bytes(batch: int, heads: int, head_dim: int, *how: Any, **more: Any) -> float:
    """Least bytes that one token per sequence moves: `generate_state_traffic`, and q, k, v and z in 16 bits."""
    return generate_state_traffic(batch, heads, head_dim, *how, **more) + batch * heads * 8 * head_dim
