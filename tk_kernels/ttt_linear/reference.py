"""What does TTT-Linear compute? Its definition in PyTorch: primal, dual and generate forms of one function.

f(k) = k @ W + b, then LN; arXiv 2407.04620, Sections 2.3 to 2.7. Inference only: no autograd.

Precision: everything is in the state's dtype (float64 for float64 tokens, else float32), except that whole mini-batches
of the dual form with bfloat16 tokens round the inputs of their products (q, k, W, G, eta) to bfloat16 and accumulate
and return them in float32, as tensor cores do. The master state is never rounded.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tk_kernels.checks import check_aligned, check_shape, check_state, common_position
from tk_kernels.reference.layer import THE_LAYER, Outer, Variant, finish, inner_gradient, loss_offset
from tk_kernels.reference.learner import SEQUENCES, TOKENS, checked_outer, forward_in_pieces
from tk_kernels.reference.mini_batches import (
    causal_eta,
    mini_batches_together,
    packed,
    product,
    read_outputs,
    subtract_product_,
    tiled,
    unpack_,
    untiled,
    with_bias_input,
)
from tk_kernels.reference.token_rows import (
    add_to_sums_,
    advance_position_,
    affine,
    apply_rows_,
    apply_sums_,
    causal_scale,
    clone,
    completion_scale,
    positions_of,
    row_correction,
    stepped_affine,
    sum_correction,
    summed_rows,
    write_rows_,
)

TOGETHER = 32  # mini-batches of 16 whose precomputed parts are held at once


class LinearState(NamedTuple):
    """Weights at the start of the current mini-batch, and the rows of its tokens so far.

    W [B, H, D, D] and b [B, H, D]: master, float32 or float64. k_rows, g_rows [B, H, m, D]: inputs and lr_j * G_j,
    rows at or beyond position are don't-care but finite. position [B] int32: number of valid rows, 0..m-1.
    """

    W: Tensor
    b: Tensor
    k_rows: Tensor
    g_rows: Tensor
    position: Tensor


class LinearPrimalState(NamedTuple):
    """Weights at the start of the current mini-batch, and dW, db: sums of lr_j k_j^T G_j and lr_j G_j so far."""

    W: Tensor
    b: Tensor
    dW: Tensor
    db: Tensor
    position: Tensor


class LinearTrace(NamedTuple):
    """What the outputs of N whole mini-batches need, in q's dtype.

    W [N, B*H, D + 8, D]: weights at each mini-batch's start, row D the bias, then 7 rows of 0. G [N, B*H, m, D].
    """

    W: Tensor
    G: Tensor


def init_state(
    W: Tensor, b: Tensor, batch: int, mini_batch: int = 16, dtype: torch.dtype = torch.float32
) -> LinearState:
    """The state before the first token, from the parameters W [H, D, D] and b [H, 1, D]."""
    heads, head_dim = W.shape[:2]
    check_shape("W", W, (heads, head_dim, head_dim))
    check_shape("b", b, (heads, 1, head_dim))
    rows = torch.zeros(batch, heads, mini_batch, head_dim, dtype=dtype, device=W.device)
    return LinearState(
        W.detach().to(dtype).repeat(batch, 1, 1, 1),
        b.detach().to(dtype)[:, 0].repeat(batch, 1, 1),
        rows,
        rows.clone(),
        torch.zeros(batch, dtype=torch.int32, device=W.device),
    )


def primal_state(state: LinearState) -> LinearPrimalState:
    """The same state with gradient sums in place of rows."""
    state = clone(state)
    sums = summed_rows(state.k_rows, state.g_rows, state.position)
    return LinearPrimalState(state.W, state.b, *sums, state.position)


@torch.no_grad()
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: LinearState,
    *,
    form: str = "dual",
    variant: Variant = THE_LAYER,
    start: int | None = None,
) -> tuple[Tensor, LinearState]:
    """Outputs of T tokens and the state after them; the given state is left as it is.

    q, k, v [B, T, H, D] of float64, float32 or bfloat16; lr [B, T, H] = base_lr * sigmoid(...) / D; token_scale [m];
    ln_weight, ln_bias [H, D]. T is any; state.position, inside the mini-batch, is any but one for all sequences, and a
    caller that knows it passes it as start and saves reading it from the device. form "primal" materialises G and W_t
    of every token.
    Raises ValueError for shapes, dtypes and forms that are not supported.
    """
    outer = checked_outer({"q": q, "k": k, "v": v}, lr, token_scale, ln_weight, ln_bias, SEQUENCES)
    _check_state(state, q, len(token_scale))
    start = common_position(state.position, start, len(token_scale))
    state = clone(state)

    def whole(q: Tensor, k: Tensor, v: Tensor, lr: Tensor, start: int) -> Tensor:
        return _outputs(q, k, lr, outer, _states_(k, v, lr, outer, state, variant), variant)

    def part(q: Tensor, k: Tensor, v: Tensor, lr: Tensor, start: int) -> Tensor:
        return _advance_(q, k, v, lr, outer, state, variant, form, start)

    mini_batch = len(token_scale)
    together = mini_batches_together(mini_batch, TOGETHER)
    return forward_in_pieces(q, k, v, lr, start, mini_batch, together, form, whole, part), state


@torch.no_grad()
def generate_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: LinearState | LinearPrimalState,
    *,
    variant: Variant = THE_LAYER,
    inplace: bool = False,
) -> tuple[Tensor, LinearState | LinearPrimalState]:
    """One token for each sequence, at any mix of positions: q, k, v [B, H, D], lr [B, H] -> out [B, H, D].

    The type of the state picks the form: rows (dual) or gradient sums (primal). No host sync and no data-dependent
    control flow, so a CUDA graph can hold it; inplace=True updates the tensors of the given state, which a graph needs.
    """
    outer = checked_outer({"q": q, "k": k, "v": v}, lr, token_scale, ln_weight, ln_bias, TOKENS)
    _check_state(state, q, len(token_scale))
    state = state if inplace else clone(state)
    token = (q[:, None], k[:, None], v[:, None], lr[:, None])
    if isinstance(state, LinearPrimalState):
        return _advance_sums_(*token, outer, state, variant)[:, 0], state
    return _advance_(*token, outer, state, variant)[:, 0], state


@torch.no_grad()
def states(
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: LinearState,
    *,
    variant: Variant = THE_LAYER,
    start: int | None = None,
) -> tuple[LinearTrace, LinearState]:
    """The sequential part of forward over whole mini-batches: every W, and the state after them; see outputs."""
    outer = checked_outer({"k": k, "v": v}, lr, token_scale, ln_weight, ln_bias, SEQUENCES)
    _check_state(state, k, len(token_scale))
    mini_batch = len(token_scale)
    check_aligned(k.shape[1], common_position(state.position, start, mini_batch), mini_batch)
    state = clone(state)
    return _states_(k, v, lr, outer, state, variant), state


@torch.no_grad()
def outputs(
    q: Tensor,
    k: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    trace: LinearTrace,
    *,
    variant: Variant = THE_LAYER,
) -> Tensor:
    """The parallel part of forward over whole mini-batches: out [B, T, H, D] from the trace of states."""
    outer = checked_outer({"q": q, "k": k}, lr, token_scale, ln_weight, ln_bias, SEQUENCES)
    check_aligned(q.shape[1], 0, len(token_scale))
    return _outputs(q, k, lr, outer, trace, variant)


def _check_state(state: LinearState | LinearPrimalState, x: Tensor, mini_batch: int) -> None:
    """Raise ValueError unless the state fits the tokens x [B, ..., H, D]."""
    batch, heads, head_dim = x.shape[0], *x.shape[-2:]
    matrix, vector = (batch, heads, head_dim, head_dim), (batch, heads, head_dim)
    shapes: dict[str, tuple[int, ...]] = {"W": matrix, "b": vector, "position": (batch,)}
    if isinstance(state, LinearPrimalState):
        shapes |= {"dW": matrix, "db": vector}
    else:
        shapes |= dict.fromkeys(("k_rows", "g_rows"), (batch, heads, mini_batch, head_dim))
    check_state(state, shapes, x.dtype)


def _states_(k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: LinearState, variant: Variant) -> LinearTrace:
    """Train on whole mini-batches, seven launches each; W and b of the state are updated in place."""
    mini_batch, batch = len(outer.token_scale), len(k)
    keys = with_bias_input(tiled(k, mini_batch), variant)
    last_eta = outer.token_scale[-1] * tiled(lr, mini_batch).unsqueeze(-1)
    steps = (last_eta * keys).to(k.dtype).mT
    offsets = tiled(loss_offset(k, v, outer, variant), mini_batch)
    weight_squared = outer.ln_weight.square().repeat(batch, 1).unsqueeze(1)
    weights = packed(state.W, state.b)
    trace = LinearTrace(k.new_empty(len(keys), *weights.shape), k.new_empty(offsets.shape))
    for key, step, offset, W, G in zip(keys, steps, offsets, *trace, strict=True):
        W.copy_(weights)
        G.copy_(inner_gradient(product(key, W), offset, weight_squared, variant))
        subtract_product_(weights, step, G)  # W <- W - (eta_last^T * K)^T @ G
    unpack_(weights, state.W, state.b)
    return trace


def _outputs(q: Tensor, k: Tensor, lr: Tensor, outer: Outer, trace: LinearTrace, variant: Variant) -> Tensor:
    """Zbar = Q @ W + b - tril(eta * (Q @ K^T + 1)) @ G and out = Q + LN(Zbar), for all mini-batches at once."""
    mini_batch = len(outer.token_scale)
    queries, keys = (with_bias_input(tiled(x, mini_batch).flatten(0, 1), variant) for x in (q, k))
    eta = causal_eta(tiled(lr, mini_batch).flatten(0, 1), outer.token_scale)
    W, G = (x.flatten(0, 1) for x in trace)
    z = read_outputs(queries, W, keys, G, eta, variant)
    return finish(untiled(z.unflatten(0, (len(trace.W), -1)), len(q)), q, outer, variant)


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: LinearState | LinearPrimalState, variant: Variant
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, q @ W + b and lr * G, each [B, H, n, D] in the state's dtype; W is read once."""
    q, k, offset = (x.to(state.W.dtype).transpose(1, 2) for x in (q, k, loss_offset(k, v, outer, variant)))
    zq, zk = affine(torch.cat((q, k), 2), state.W, state.b, variant).chunk(2, 2)
    G = inner_gradient(zk, offset, outer.ln_weight.square().unsqueeze(1), variant)
    return q, k, zq, lr.transpose(1, 2).unsqueeze(-1) * G


def _advance_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    outer: Outer,
    state: LinearState,
    variant: Variant,
    form: str = "dual",
    start: int = 0,
) -> Tensor:
    """n tokens of one mini-batch, from rows, at any positions; form "primal" needs all sequences at position start."""
    token_scale, n = outer.token_scale, q.shape[1]
    positions = positions_of(state.position, n)
    layer = (state.W, state.b, state.k_rows, state.g_rows)
    qh, kh, z, gh = _gradients(q, k, v, lr, outer, state, variant)
    write_rows_(state.k_rows, kh, positions)
    write_rows_(state.g_rows, gh, positions)
    if form == "dual":
        z = z - row_correction(qh, *layer[2:], causal_scale(positions, token_scale), variant)
    else:
        z = stepped_affine(qh, *layer, token_scale, start, variant)
    apply_rows_(*layer, completion_scale(positions, token_scale), variant)
    advance_position_(state.position, n, len(token_scale))
    return finish(z.transpose(1, 2), q, outer, variant)


def _advance_sums_(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: LinearPrimalState, variant: Variant
) -> Tensor:
    """One token a sequence, from gradient sums, at any positions."""
    positions = positions_of(state.position, 1)
    sums = (state.dW, state.db)
    qh, kh, z, gh = _gradients(q, k, v, lr, outer, state, variant)
    add_to_sums_(*sums, kh, gh)
    z = z - sum_correction(qh, *sums, outer.token_scale[positions][:, None, :, None], variant)
    apply_sums_(state.W, state.b, *sums, positions, outer.token_scale, variant)
    advance_position_(state.position, 1, len(outer.token_scale))
    return finish(z.transpose(1, 2), q, outer, variant)
