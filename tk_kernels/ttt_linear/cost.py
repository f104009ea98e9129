"""FLOPs and bytes of TTT-Linear: one layer without its projections; a multiply-add is two FLOPs.

D head dimension, m mini-batch size. LayerNorm and the inner gradient are O(D) per token and not counted.
"""

from typing import Any

from tk_kernels.generate.traffic import Learner, check_form_name, kept_bytes, moved_bytes


def state_bytes(batch: int, heads: int, head_dim: int, element_bytes: int = 4) -> int:
    """Bytes of W [D, D] and b [D] of all sequences and heads."""
    return batch * heads * (head_dim + 1) * head_dim * element_bytes


def forward_flops(batch: int, tokens: int, heads: int, head_dim: int, mini_batch: int = 16) -> int:
    """FLOPs of the dual form over `batch` sequences of `tokens` tokens.

    Per token: K@W, Q@W, K^T@G are 2DD each; Q@K^T and (eta * ..)@G are 2mD each, without a discount for causality.
    """
    return batch * tokens * heads * (6 * head_dim**2 + 4 * mini_batch * head_dim)


def token_bytes(batch: int, tokens: int, heads: int, head_dim: int, element_bytes: int = 2) -> int:
    """Bytes of q, k, v (read) and z (written), [B, T, H, D] each."""
    return 4 * batch * tokens * heads * head_dim * element_bytes


def forward_bytes(batch: int, tokens: int, heads: int, head_dim: int, element_bytes: int = 2) -> int:
    """Least bytes that a fused forward moves: q, k, v, z; lr in float32; W and b read and written once in float32."""
    return (
        token_bytes(batch, tokens, heads, head_dim, element_bytes)
        + 4 * batch * tokens * heads
        + 2 * state_bytes(batch, heads, head_dim)
    )


def generate_flops(batch: int, heads: int, head_dim: int, mini_batch: int = 16, form: str = "dual") -> float:
    """FLOPs of one token per sequence, averaged over a mini-batch.

    dual: k@W, q@W and 1/m of a rank-m update, 2DD each; two matmuls with (m+1)/2 rows, 2D per row each.
    primal: k@W, dW += k^T g, W - s dW and q@W_t, 2DD each.
    """
    check_form_name(form)
    dual = 6 * head_dim**2 + 2 * (mini_batch + 1) * head_dim
    return batch * heads * (dual if form == "dual" else 8 * head_dim**2)


def learner(head_dim: int) -> Learner:
    """Number of elements per head: of W, of b, and of the rows of K and G for one token."""
    return Learner(head_dim**2, head_dim, 2 * head_dim)


def generate_state_bytes(batch: int, heads: int, head_dim: int, *how: Any, **more: Any) -> int:
    """Bytes of the generate state of all sequences; how, more: further arguments of `traffic.kept_bytes`."""
    return batch * heads * kept_bytes(learner(head_dim), *how, **more)


def generate_state_traffic(batch: int, heads: int, head_dim: int, *how: Any, **more: Any) -> float:
    """Least state bytes that one token per sequence moves; how, more: further arguments of `traffic.moved_bytes`."""
    return batch * heads * moved_bytes(learner(head_dim), *how, **more)


def generate_bytes(batch: int, heads: int, head_dim: int, *how: Any, **more: Any) -> float:
    """Least bytes that one token per sequence moves: `generate_state_traffic`, and q, k, v and z in 16 bits."""
    return generate_state_traffic(batch, heads, head_dim, *how, **more) + batch * heads * 8 * head_dim
