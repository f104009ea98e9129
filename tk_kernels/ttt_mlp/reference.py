"""What does TTT-MLP compute? Its definition in PyTorch: primal, dual and generate forms of one function.

f(k) = gelu(k @ W1 + b1) @ W2 + b2, then LN; arXiv 2407.04620, Sections 2.3 to 2.7. Inference only: no autograd.

Precision: everything is in the state's dtype (float64 for float64 tokens, else float32), except that whole mini-batches
of the dual form with bfloat16 tokens round the inputs of their products (q, k, X2, W1, W2, G1, G2, eta) to bfloat16 and
accumulate and return them in float32, as tensor cores do. The master state is never rounded.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tk_kernels.checks import check_aligned, check_shape, check_state, common_position
from tk_kernels.reference.layer import (
    THE_LAYER,
    Outer,
    Variant,
    activate,
    activation_gradient,
    finish,
    inner_gradient,
    loss_offset,
)
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

TOGETHER = 16  # mini-batches of 16 whose precomputed parts and weights are held at once


class MLPState(NamedTuple):
    """Weights at the start of the current mini-batch, and the rows of its tokens so far; F = 4 D in the paper.

    W1 [B, H, D, F], b1 [B, H, F], W2 [B, H, F, D], b2 [B, H, D]: master, float32 or float64. k_rows [B, H, m, D] and
    x2_rows [B, H, m, F]: inputs of the two layers; g1_rows [B, H, m, F] and g2_rows [B, H, m, D]: lr_j * G_j. Rows at
    or beyond position are don't-care but finite. position [B] int32: number of valid rows, 0..m-1.
    """

    W1: Tensor
    b1: Tensor
    W2: Tensor
    b2: Tensor
    k_rows: Tensor
    x2_rows: Tensor
    g1_rows: Tensor
    g2_rows: Tensor
    position: Tensor


class MLPPrimalState(NamedTuple):
    """Weights at the start of the current mini-batch, and the sums of lr_j times their gradients so far."""

    W1: Tensor
    b1: Tensor
    W2: Tensor
    b2: Tensor
    dW1: Tensor
    db1: Tensor
    dW2: Tensor
    db2: Tensor
    position: Tensor


class MLPTrace(NamedTuple):
    """What the outputs of N whole mini-batches need, in q's dtype.

    W1 [N, B*H, D + 8, F], W2 [N, B*H, F + 8, D]: weights at each mini-batch's start, then a row of biases, then 7 rows
    of 0. X2 [N, B*H, m, F + 8], G1 [N, B*H, m, F], G2 [N, B*H, m, D].
    """

    W1: Tensor
    W2: Tensor
    X2: Tensor
    G1: Tensor
    G2: Tensor


class Gradients(NamedTuple):
    """Tokens and their gradients at the mini-batch's start, [B, H, n, ...] in the state's dtype."""

    q: Tensor
    z1: Tensor  # q @ W1 + b1
    k: Tensor
    x2: Tensor
    g1: Tensor  # lr * G1
    g2: Tensor


def init_state(
    W1: Tensor,
    b1: Tensor,
    W2: Tensor,
    b2: Tensor,
    batch: int,
    mini_batch: int = 16,
    dtype: torch.dtype = torch.float32,
) -> MLPState:
    """The state before the first token, from W1 [H, D, F], b1 [H, 1, F], W2 [H, F, D] and b2 [H, 1, D]."""
    heads, head_dim, hidden = W1.shape
    check_shape("b1", b1, (heads, 1, hidden))
    check_shape("W2", W2, (heads, hidden, head_dim))
    check_shape("b2", b2, (heads, 1, head_dim))

    def rows(width: int) -> Tensor:
        return torch.zeros(batch, heads, mini_batch, width, dtype=dtype, device=W1.device)

    W1, b1, W2, b2 = (x.detach().to(dtype).repeat(batch, 1, 1, 1) for x in (W1, b1, W2, b2))
    position = torch.zeros(batch, dtype=torch.int32, device=W1.device)
    x_rows, g_rows = (rows(head_dim), rows(hidden)), (rows(hidden), rows(head_dim))
    return MLPState(W1, b1.squeeze(2), W2, b2.squeeze(2), *x_rows, *g_rows, position)


def primal_state(state: MLPState) -> MLPPrimalState:
    """The same state with gradient sums in place of rows."""
    state = clone(state)
    sums1 = summed_rows(state.k_rows, state.g1_rows, state.position)
    sums2 = summed_rows(state.x2_rows, state.g2_rows, state.position)
    return MLPPrimalState(state.W1, state.b1, state.W2, state.b2, *sums1, *sums2, state.position)


@torch.no_grad()
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    token_scale: Tensor,
    ln_weight: Tensor,
    ln_bias: Tensor,
    state: MLPState,
    *,
    form: str = "dual",
    variant: Variant = THE_LAYER,
    start: int | None = None,
) -> tuple[Tensor, MLPState]:
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
    state: MLPState | MLPPrimalState,
    *,
    variant: Variant = THE_LAYER,
    inplace: bool = False,
) -> tuple[Tensor, MLPState | MLPPrimalState]:
    """One token for each sequence, at any mix of positions: q, k, v [B, H, D], lr [B, H] -> out [B, H, D].

    The type of the state picks the form: rows (dual) or gradient sums (primal). No host sync and no data-dependent
    control flow, so a CUDA graph can hold it; inplace=True updates the tensors of the given state, which a graph needs.
    """
    outer = checked_outer({"q": q, "k": k, "v": v}, lr, token_scale, ln_weight, ln_bias, TOKENS)
    _check_state(state, q, len(token_scale))
    state = state if inplace else clone(state)
    token = (q[:, None], k[:, None], v[:, None], lr[:, None])
    if isinstance(state, MLPPrimalState):
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
    state: MLPState,
    *,
    variant: Variant = THE_LAYER,
    start: int | None = None,
) -> tuple[MLPTrace, MLPState]:
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
    trace: MLPTrace,
    *,
    variant: Variant = THE_LAYER,
) -> Tensor:
    """The parallel part of forward over whole mini-batches: out [B, T, H, D] from the trace of states."""
    outer = checked_outer({"q": q, "k": k}, lr, token_scale, ln_weight, ln_bias, SEQUENCES)
    check_aligned(q.shape[1], 0, len(token_scale))
    return _outputs(q, k, lr, outer, trace, variant)


def _check_state(state: MLPState | MLPPrimalState, x: Tensor, mini_batch: int) -> None:
    """Raise ValueError unless the state fits the tokens x [B, ..., H, D]."""
    batch, heads, head_dim, hidden = x.shape[0], *x.shape[-2:], state.W1.shape[-1]
    first, second = (batch, heads, head_dim, hidden), (batch, heads, hidden, head_dim)
    shapes: dict[str, tuple[int, ...]] = {"W1": first, "W2": second, "position": (batch,)}
    shapes |= {"b1": (batch, heads, hidden), "b2": (batch, heads, head_dim)}
    if isinstance(state, MLPPrimalState):
        shapes |= {"dW1": first, "dW2": second, "db1": shapes["b1"], "db2": shapes["b2"]}
    else:
        shapes |= dict.fromkeys(("k_rows", "g2_rows"), (batch, heads, mini_batch, head_dim))
        shapes |= dict.fromkeys(("x2_rows", "g1_rows"), (batch, heads, mini_batch, hidden))
    check_state(state, shapes, x.dtype)


def _empty_trace(k: Tensor, W1: Tensor, W2: Tensor, count: int, mini_batch: int, variant: Variant) -> MLPTrace:
    """A trace for `count` mini-batches of packed weights, whose X2 already holds its bias input."""
    hidden, head_dim = W1.shape[-1], W2.shape[-1]

    def rows(width: int) -> Tensor:
        return k.new_empty(count, len(W1), mini_batch, width)

    X2 = with_bias_input(rows(hidden), variant)
    return MLPTrace(k.new_empty(count, *W1.shape), k.new_empty(count, *W2.shape), X2, rows(hidden), rows(head_dim))


def _states_(k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: MLPState, variant: Variant) -> MLPTrace:
    """Train on whole mini-batches, 16 launches each; weights and biases of the state are updated in place."""
    mini_batch, batch, hidden = len(outer.token_scale), len(k), state.W1.shape[-1]
    keys = with_bias_input(tiled(k, mini_batch), variant)
    last_eta = outer.token_scale[-1] * tiled(lr, mini_batch).unsqueeze(-1)
    steps = (last_eta * keys).to(k.dtype).mT
    rates = last_eta.to(k.dtype)
    offsets = tiled(loss_offset(k, v, outer, variant), mini_batch)
    weight_squared = outer.ln_weight.square().repeat(batch, 1).unsqueeze(1)
    weights1, weights2 = packed(state.W1, state.b1), packed(state.W2, state.b2)
    trace = _empty_trace(k, weights1, weights2, len(keys), mini_batch, variant)
    for key, step, rate, offset, W1, W2, X2, G1, G2 in zip(keys, steps, rates, offsets, *trace, strict=True):
        W1.copy_(weights1)
        W2.copy_(weights2)
        z1 = product(key, W1)
        X2[..., :hidden].copy_(activate(z1, variant))
        G2.copy_(inner_gradient(product(X2, W2), offset, weight_squared, variant))
        G1.copy_(activation_gradient(product(G2, W2[:, :hidden].mT), z1, variant))
        subtract_product_(weights1, step, G1)  # W1 <- W1 - (eta_last^T * K)^T @ G1
        subtract_product_(weights2, X2.mT, rate * G2)
    unpack_(weights1, state.W1, state.b1)
    unpack_(weights2, state.W2, state.b2)
    return trace


def _outputs(q: Tensor, k: Tensor, lr: Tensor, outer: Outer, trace: MLPTrace, variant: Variant) -> Tensor:
    """Z1bar, X2bar = gelu(Z1bar), Z2bar and out = Q + LN(Z2bar), for all mini-batches at once."""
    mini_batch = len(outer.token_scale)
    queries, keys = (with_bias_input(tiled(x, mini_batch).flatten(0, 1), variant) for x in (q, k))
    eta = causal_eta(tiled(lr, mini_batch).flatten(0, 1), outer.token_scale)
    W1, W2, X2, G1, G2 = (x.flatten(0, 1) for x in trace)
    z1 = read_outputs(queries, W1, keys, G1, eta, variant)
    x2 = with_bias_input(activate(z1, variant).to(q.dtype), variant)
    z2 = read_outputs(x2, W2, X2, G2, eta, variant)
    return finish(untiled(z2.unflatten(0, (len(trace.W1), -1)), len(q)), q, outer, variant)


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: MLPState | MLPPrimalState, variant: Variant
) -> Gradients:
    """The gradients of n tokens at the weights of their mini-batch's start; W1 is read once."""
    q, k, offset = (x.to(state.W1.dtype).transpose(1, 2) for x in (q, k, loss_offset(k, v, outer, variant)))
    z1q, z1k = affine(torch.cat((q, k), 2), state.W1, state.b1, variant).chunk(2, 2)
    x2 = activate(z1k, variant)
    z2 = affine(x2, state.W2, state.b2, variant)
    rate = lr.transpose(1, 2).unsqueeze(-1)
    g2 = rate * inner_gradient(z2, offset, outer.ln_weight.square().unsqueeze(1), variant)
    g1 = activation_gradient(g2 @ state.W2.mT, z1k, variant)
    return Gradients(q, z1q, k, x2, g1, g2)


def _advance_(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lr: Tensor,
    outer: Outer,
    state: MLPState,
    variant: Variant,
    form: str = "dual",
    start: int = 0,
) -> Tensor:
    """n tokens of one mini-batch, from rows, at any positions; form "primal" needs all sequences at position start."""
    token_scale, n = outer.token_scale, q.shape[1]
    positions = positions_of(state.position, n)
    layer1 = (state.W1, state.b1, state.k_rows, state.g1_rows)
    layer2 = (state.W2, state.b2, state.x2_rows, state.g2_rows)
    new = _gradients(q, k, v, lr, outer, state, variant)
    for rows, x in ((layer1[2], new.k), (layer1[3], new.g1), (layer2[2], new.x2), (layer2[3], new.g2)):
        write_rows_(rows, x, positions)
    if form == "dual":
        scale = causal_scale(positions, token_scale)
        z1 = new.z1 - row_correction(new.q, *layer1[2:], scale, variant)
        x2 = activate(z1, variant)
        z2 = affine(x2, *layer2[:2], variant) - row_correction(x2, *layer2[2:], scale, variant)
    else:
        z1 = stepped_affine(new.q, *layer1, token_scale, start, variant)
        z2 = stepped_affine(activate(z1, variant), *layer2, token_scale, start, variant)
    last = completion_scale(positions, token_scale)
    apply_rows_(*layer1, last, variant)
    apply_rows_(*layer2, last, variant)
    advance_position_(state.position, n, len(token_scale))
    return finish(z2.transpose(1, 2), q, outer, variant)


def _advance_sums_(
    q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: MLPPrimalState, variant: Variant
) -> Tensor:
    """One token a sequence, from gradient sums, at any positions."""
    positions = positions_of(state.position, 1)
    scale = outer.token_scale[positions][:, None, :, None]
    sums1, sums2 = (state.dW1, state.db1), (state.dW2, state.db2)
    new = _gradients(q, k, v, lr, outer, state, variant)
    add_to_sums_(*sums1, new.k, new.g1)
    add_to_sums_(*sums2, new.x2, new.g2)
    z1 = new.z1 - sum_correction(new.q, *sums1, scale, variant)
    x2 = activate(z1, variant)
    z2 = affine(x2, state.W2, state.b2, variant) - sum_correction(x2, *sums2, scale, variant)
    apply_sums_(state.W1, state.b1, *sums1, positions, outer.token_scale, variant)
    apply_sums_(state.W2, state.b2, *sums2, positions, outer.token_scale, variant)
    advance_position_(state.position, 1, len(outer.token_scale))
    return finish(z2.transpose(1, 2), q, outer, variant)
