"""TTT-MLP generate in Triton: one token for each sequence of a large batch, one launch that a CUDA graph can hold.

Two forms of the function in `reference.py` (ttt_layer.md, "Three forms"):

dual    caches the rows of K, X2 and lr * G inside a mini-batch, reads W1 and W2 at every token, rewrites them once
        in m tokens; on Hopper with 16 bits per weight the kernel of `generate_sm90.py` runs

primal  has the running sums of the gradients next to W1 and W2, reads and writes them at every token

One program owns one head of one sequence. It branches on the position of its sequence in device memory.
"""
# mypy: allow-untyped-defs
# (Triton reads the annotations of kernels and knows no type except tl.constexpr)

from __future__ import annotations

from dataclasses import dataclass

import torch

from tk_kernels.generate.common import (
    PRECISIONS,
    available,
    by_sequences,
    check_form,
    check_slots,
    check_step,
    columns,
    dependent_launch,
    dot_type,
    float_copy,
    gathered_rows,
    gelu,
    gelu_grad,
    jit,
    learning_rate,
    ln_l2_grad,
    load_angles,
    load_token,
    load_weights,
    normalise,
    on_its_device,
    restore,
    rotate,
    section_name,
    slot_of,
    store,
    store_weights,
    tl,
    to_float32_again,
    triton,
)
from tk_kernels.generate.tuning import Tuning, check_launch, tuning
from tk_kernels.ttt_mlp import generate_wide
from tk_kernels.ttt_mlp.generate_wide import apply_rows
from tk_kernels.ttt_mlp.reference import MLPPrimalState, MLPState

__all__ = ["GenerateState", "available", "generate_step"]

IN_REGISTERS = 64  # the largest head dimension whose weights fit the registers of a program
WIDE = Tuning(warps=8, block=32)  # for wider heads


@dataclass
class GenerateState:
    """State of `generate_step`, updated in place at every token.

    weights1 (W1 transposed) and weights2 [B, H, F, D] in the precision's type (for "planes" the high ones).
    low1, low2: their int16 low planes or None. b1 [B, H, F], b2 [B, H, D] float32.
    position [B, H] int32, the same for all heads of a sequence.
    gathered: data of the current mini-batch. Dual form: rows of K, X2, lr * G1 and lr * G2, [B, H, m, D or F] in the
    precision's row type. Primal form: float32 dW1 (transposed), db1, dW2 and db2.
    slots: see `tk_kernels.ttt_linear.generate.GenerateState`.
    """

    form: str
    precision: str
    mini_batch: int
    weights1: torch.Tensor
    low1: torch.Tensor | None
    b1: torch.Tensor
    weights2: torch.Tensor
    low2: torch.Tensor | None
    b2: torch.Tensor
    position: torch.Tensor
    gathered: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    slots: torch.Tensor | None = None

    @classmethod
    def from_state(cls, state: MLPState, form: str = "dual", precision: str = "planes") -> GenerateState:
        """Convert the state after forward, at any position, to this form and precision. Copies all tensors."""
        check_form(form, precision)
        weights1, low1 = by_sequences(lambda W1: store(W1.mT, precision), state.W1)
        weights2, low2 = by_sequences(lambda W2: store(W2, precision), state.W2)
        position = state.position[:, None].repeat(1, state.W1.shape[1]).to(torch.int32)
        b1, b2 = float_copy(state.b1), float_copy(state.b2)
        sums = _running_sums if form == "primal" else None
        gathered = gathered_rows(state.position, _rows_of(state), PRECISIONS[precision].rows, sums)
        m = state.k_rows.shape[2]
        return cls(form, precision, m, weights1, low1, b1, weights2, low2, b2, position, gathered)

    def to_state(self) -> MLPState | MLPPrimalState:
        """Convert to the reference's state: rows for the dual form, gradient sums for the primal. Float32 copies."""
        position, b1, b2 = self.position[:, 0].clone(), self.b1.clone(), self.b2.clone()
        W1, W2 = restore(self.weights1, self.low1).mT.contiguous(), restore(self.weights2, self.low2)
        if self.form == "dual":
            k, x2, g1, g2 = (float_copy(x) for x in self.gathered)
            return MLPState(W1, b1, W2, b2, k, x2, g1, g2, position)
        running = (self.position > 0)[..., None]  # a new mini-batch ignores the old sums
        dW1, db1, dW2, db2 = self.gathered
        dW1, dW2 = dW1.mT * running[..., None], dW2 * running[..., None]
        return MLPPrimalState(W1, b1, W2, b2, dW1, db1 * running, dW2, db2 * running, position)

    def tensors(self) -> list[torch.Tensor]:
        """List the state's tensors, without slots, to snapshot them or to sum their bytes."""
        weights = (self.weights1, self.low1, self.b1, self.weights2, self.low2, self.b2)
        return [x for x in (*weights, self.position, *self.gathered) if x is not None]


def _rows_of(state: MLPState) -> tuple[torch.Tensor, ...]:
    return state.k_rows, state.x2_rows, state.g1_rows, state.g2_rows


def _running_sums(*rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return dW1 (transposed), db1, dW2 and db2 of rows of K, X2, lr * G1 and lr * G2, summed in float64."""
    k, x2, g1, g2 = (x.double() for x in rows)
    return (g1.mT @ k).float(), g1.sum(2).float(), (x2.mT @ g2).float(), g2.sum(2).float()


@on_its_device
def generate_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lr: torch.Tensor,
    token_scale: torch.Tensor,
    ln_weight: torch.Tensor,
    ln_bias: torch.Tensor,
    gstate: GenerateState,
    *,
    out: torch.Tensor | None = None,
    rope: torch.Tensor | None = None,
    base_lr: float | None = None,
    launch: Tuning | None = None,
    pdl: bool = False,
    compile_only: bool = False,
) -> torch.Tensor:
    """Return `q + LN(f(q))` [B, H, D] of one token per sequence, after its gradient step; advance `gstate` in place.

    q, k, v [B, H, D] in one type, out in any; only B may be strided. lr [B, H] float32 or in q's type.
    token_scale [m]; ln_weight, ln_bias [H, D].
    rope: the table of `rope_table`, if q and k lack RoPE. base_lr: if given, lr holds the logits x · w_h + c_h.
    launch: settings instead of the row of `tuning.toml`.
    pdl: a dependent launch (`dependent_launch`) reads gstate early. Only kernels for Hopper use it.
    compile_only: compile like a first launch and compute nothing (see `build/parallel.py`).
    Raises ValueError on a wrong shape, dtype, stride or device, and for a launch that does not suit the state.
    """
    B, (_, H, D), F = len(gstate.position), gstate.b2.shape, gstate.b1.shape[2]
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    tokens = {"q": q, "k": k, "v": v, "out": out}
    parameters = {"token_scale": token_scale, "ln_weight": ln_weight, "ln_bias": ln_bias}
    s = gstate
    check_step(tokens, lr, parameters, rope, (B, H, D), s.mini_batch, s.b1)
    check_slots(s.slots, s.form, B)
    if not B * H:
        return out
    launch = launch or default_launch(s)
    check_launch(launch, suits_sm90(s))
    strides = {"w_stride": s.weights1.stride(0), "b1_stride": s.b1.stride(0), "b2_stride": s.b2.stride(0)}
    strides |= {"d_stride": s.gathered[0].stride(0), "f_stride": s.gathered[1].stride(0)}
    paged = strides | {"slots": s.slots, "SLOTS": s.slots is not None} if s.form == "dual" else {}
    if launch.sm90:
        from tk_kernels.ttt_mlp.generate_sm90 import dual  # a late import: few machines have Gluon

        dual.run(
            q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope,
            s.weights1, s.low1, s.b1, s.weights2, s.low2, s.b2, *s.gathered, s.position,
            q.stride(0), k.stride(0), v.stride(0), out.stride(0), lr.stride(0), base_lr or 0.0,
            H=H, m=s.mini_batch, G=launch.warps,
            PLANES=s.low1 is not None, ROPE=rope is not None, LOGITS=base_lr is not None,
            grid=(B * H,), warmup=compile_only, num_warps=launch.warps, maxnreg=launch.registers or None,
            **dependent_launch(pdl), **paged,
        )  # fmt: skip
        return out
    arguments = (
        q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope,
        s.weights1, s.low1, s.b1, s.weights2, s.low2, s.b2, *s.gathered, s.position,
        q.stride(0), k.stride(0), v.stride(0), out.stride(0), lr.stride(0), base_lr or 0.0,
    )  # fmt: skip
    constants = {
        "H": H, "D": D, "DP": triton.next_power_of_2(D), "F": F,
        "m": s.mini_batch, "MP": max(16, triton.next_power_of_2(s.mini_batch)),
        "PLANES": s.low1 is not None, "ROPE": rope is not None, "LOGITS": base_lr is not None,
        "BLOCK": min(launch.block, triton.next_power_of_2(F)), "DOT": dot_type(s.gathered[0]),
        "grid": (B * H,), "warmup": compile_only, "num_warps": launch.warps, "maxnreg": launch.registers or None,
        **paged,
    }  # fmt: skip
    if D > IN_REGISTERS:
        wide = generate_wide.dual if s.form == "dual" else generate_wide.primal
        wide.run(*arguments, **constants)
    else:
        kernel = _dual if s.form == "dual" else _primal
        kernel.run(*arguments, **constants, FP=triton.next_power_of_2(F), MATRIX=launch.matrix)
    return out


def default_launch(state: GenerateState) -> Tuning:
    """Return the row of `tuning.toml` for this state; its field `sm90` selects the kernel."""
    if state.b2.shape[2] > IN_REGISTERS:
        return WIDE
    return tuning("ttt_mlp", state.form, state.precision, tuned_as(state))


def tuned_as(state: GenerateState) -> str:
    """Return the name of the section of `tuning.toml` for this state's kernel and GPU."""
    return section_name(suits_sm90(state), state.b2.device)


def suits_sm90(state: GenerateState) -> bool:
    """Whether `generate_sm90.py` supports the state: dual form, 16-bit rows, D = 64, F = 256, m at most 16."""
    in_16_bits = state.form == "dual" and state.precision != "float32"
    return in_16_bits and (state.b2.shape[2], state.b1.shape[2]) == (64, 256) and state.mini_batch <= 16


@jit
def _dual(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope,
    weights1, low1, b1, weights2, low2, b2, rows_k, rows_x2, rows_g1, rows_g2, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr,
    slots, w_stride, b1_stride, b2_stride, d_stride, f_stride,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
    m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr,
    BLOCK: tl.constexpr, MATRIX: tl.constexpr, DOT: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd, rf, rm = tl.arange(0, DP), tl.arange(0, FP), tl.arange(0, MP)
    valid, wide = rd < D, rf < F
    row_type = rows_g1.dtype.element_ty
    pos = tl.load(position + pid)
    # Hidden unit f is row f of weights1 (W1 transposed) and of weights2
    slot = slot_of(slots, seq, SLOTS)
    weights1 += slot * w_stride + head * (D * F)
    weights2 += slot * w_stride + head * (D * F)
    b1 += slot * b1_stride + head * F
    b2 += slot * b2_stride + head * D
    rows_k += slot * d_stride + head * (m * D)
    rows_x2 += slot * f_stride + head * (m * F)
    rows_g1 += slot * f_stride + head * (m * F)
    rows_g2 += slot * d_stride + head * (m * D)
    # The compiler moves the weights to shared memory, and waits for the first before it requests the second. Loads
    # between them overlap with the first.
    tile = rf[:, None] * D + rd[None, :]
    w1 = tl.load(weights1 + tile, mask=wide[:, None] & valid[None, :], other=0)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias1 = tl.load(b1 + rf, mask=wide, other=0)
    bias2 = tl.load(b2 + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    at_d, at_f = rm[:, None] * D + rd[None, :], rm[:, None] * F + rf[None, :]
    earlier = rm[:, None] < pos
    past_k = tl.load(rows_k + at_d, mask=earlier & valid[None, :], other=0)
    past_g1 = tl.load(rows_g1 + at_f, mask=earlier & wide[None, :], other=0)
    past_x2 = tl.load(rows_x2 + at_f, mask=earlier & wide[None, :], other=0)
    past_g2 = tl.load(rows_g2 + at_d, mask=earlier & valid[None, :], other=0)
    w2 = tl.load(weights2 + tile, mask=wide[:, None] & valid[None, :], other=0)

    # Z1 = k @ W1 + b1 ; Z1bar = q @ W1 + b1 - s_i * sum_{j < i} (q . k_j + 1) g1_j, and the term of j = i below
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    weight1 = -scale * (tl.sum(qf[None, :] * past_k.to(tl.float32), 1) + 1.0)
    z1, zbar1 = first_products(w1, past_g1, kf, qf, weight1, MATRIX, DOT)
    z1 += bias1
    zbar1 += bias1
    # X2 = gelu(Z1) ; Z2 = X2 @ W2 + b2
    x2 = gelu(z1)
    z2 = sum_rows(w2, x2, MATRIX, DOT) + bias2
    # G2 ; G1 = (G2 @ W2^T) * gelu'(Z1) ; g = lr * G, rounded as it will be cached
    eta = learning_rate(rate, base_lr, D, LOGITS)
    grad2 = ln_l2_grad(z2, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    grad1 = sum_columns(w2, grad2, MATRIX, DOT) * gelu_grad(z1)
    x2 = x2.to(row_type)
    g1 = (eta * grad1).to(row_type)
    g2 = (eta * grad2).to(row_type)
    xbar2 = gelu(zbar1 - scale * (tl.sum(qf * kf, 0) + 1.0) * g1.to(tl.float32))
    # Z2bar = X2bar @ W2 + b2 - s_i * sum_{j <= i} (X2bar . X2_j + 1) g2_j
    zbar2 = sum_rows(w2, xbar2, MATRIX, DOT) + bias2
    weight2 = sum_columns(past_x2, xbar2, MATRIX, DOT) + 1.0
    own2 = tl.sum(xbar2 * x2.to(tl.float32), 0) + 1.0
    zbar2 -= scale * (tl.sum(weight2[:, None] * past_g2.to(tl.float32), 0) + own2 * g2.to(tl.float32))
    xhat, _ = normalise(tl.where(valid, zbar2, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.store(rows_k + pos * D + rd, kf.to(row_type), mask=valid)
    tl.store(rows_x2 + pos * F + rf, x2, mask=wide)
    tl.store(rows_g1 + pos * F + rf, g1, mask=wide)
    tl.store(rows_g2 + pos * D + rd, g2, mask=valid)
    tl.debug_barrier()  # every warp has read the position and the state
    if not SLOTS:
        tl.store(position + pid, tl.where(pos < m - 1, pos + 1, 0))
    if pos == m - 1:
        if PLANES:
            low1 += slot * w_stride + head * (D * F)
            low2 += slot * w_stride + head * (D * F)
        tl.debug_barrier()  # the rows just written are read back
        apply_rows(
            weights1, low1, b1, weights2, low2, b2, rows_k, rows_x2, rows_g1, rows_g2,
            scale, rd, rm, D, F, m, PLANES, BLOCK, DOT,
        )  # fmt: skip


# Matrix times vector: with MATRIX on tensor cores, with 16 columns, the minimum; otherwise in float32. A vector fills
# two columns (see `columns`), so only the weights and the cached rows are rounded to 16 bits.


@jit
def sum_columns(w, x, MATRIX: tl.constexpr, DOT: tl.constexpr):
    """Return the vector w @ x [M] for w [M, N] and x [N]."""
    return tl.sum(tl.dot(w.to(DOT), columns(x, 0, DOT)), 1) if MATRIX else tl.sum(to_float32_again(w) * x[None, :], 1)


@jit
def sum_rows(w, x, MATRIX: tl.constexpr, DOT: tl.constexpr):
    """Return the vector x @ w [N] for w [M, N] and x [M]."""
    if MATRIX:
        w = tl.trans(w)
    return tl.sum(tl.dot(w.to(DOT), columns(x, 0, DOT)), 1) if MATRIX else tl.sum(w.to(tl.float32) * x[:, None], 0)


@jit
def first_products(w1, past_g1, k, q, weight1, MATRIX: tl.constexpr, DOT: tl.constexpr):
    """Return w1 @ k and w1 @ q + weight1 @ past_g1, each [F], for w1 [F, D] and past_g1 [m, F]."""
    if MATRIX:
        both = tl.dot(w1.to(DOT), columns(k, 0, DOT) + columns(q, 2, DOT))
        both = tl.dot(tl.trans(past_g1.to(DOT)), columns(weight1, 2, DOT), both)
        first = (tl.arange(0, 16) < 2)[None, :]
        of_k, of_q = tl.sum(tl.where(first, both, 0.0), 1), tl.sum(tl.where(first, 0.0, both), 1)
    else:
        of_k = tl.sum(w1.to(tl.float32) * k[None, :], 1)
        of_q = tl.sum(to_float32_again(w1) * q[None, :], 1) + tl.sum(past_g1.to(tl.float32) * weight1[:, None], 0)
    return of_k, of_q


@jit
def _primal(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope,
    weights1, low1, b1, weights2, low2, b2, dW1, db1, dW2, db2, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, F: tl.constexpr, FP: tl.constexpr,
    m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr,
    BLOCK: tl.constexpr, MATRIX: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd, rf = tl.arange(0, DP), tl.arange(0, FP)
    valid, wide = rd < D, rf < F
    pos = tl.load(position + pid)
    last = pos == m - 1
    at = pid * (D * F)
    tile = at + rf[:, None] * D + rd[None, :]  # weights1 and dW1 are transposed
    mask = wide[:, None] & valid[None, :]
    w1 = tl.load(weights1 + tile, mask=mask, other=0)
    w2 = tl.load(weights2 + tile, mask=mask, other=0)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias1 = tl.load(b1 + pid * F + rf, mask=wide, other=0)
    bias2 = tl.load(b2 + pid * D + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    # A new mini-batch starts from 0 whatever is stored, so nothing has to clear the sums
    sum_b1 = tl.load(db1 + pid * F + rf, mask=wide & (pos > 0), other=0)
    sum_b2 = tl.load(db2 + pid * D + rd, mask=valid & (pos > 0), other=0)

    # Z1 = k @ W1 + b1 ; X2 = gelu(Z1) ; Z2 = X2 @ W2 + b2
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    eta = learning_rate(rate, base_lr, D, LOGITS)
    z1 = tl.sum(w1.to(tl.float32) * kf[None, :], 1) + bias1
    zbar1 = tl.sum(w1.to(tl.float32) * qf[None, :], 1) + bias1
    x2 = gelu(z1)
    z2 = tl.sum(x2[:, None] * w2.to(tl.float32), 0) + bias2
    grad2 = ln_l2_grad(z2, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    g1 = eta * (tl.sum(w2.to(tl.float32) * grad2[None, :], 1) * gelu_grad(z1))
    g2 = eta * grad2
    tl.debug_barrier()  # every warp has read the weights
    # W1_t = W1 - s (dW1 + lr K^T G1) ; X2bar = gelu(q @ W1_t + b1_t)
    sum_W1 = tl.load(dW1 + tile, mask=mask & (pos > 0), other=0) + g1[:, None] * kf[None, :]
    sum_b1 += g1
    xbar2 = gelu(zbar1 - scale * (tl.sum(sum_W1 * qf[None, :], 1) + sum_b1))
    if last:
        x = load_weights(weights1, low1, tile, mask, PLANES) - scale * sum_W1
        store_weights(weights1, low1, tile, x, mask, PLANES)
    else:
        tl.store(dW1 + tile, sum_W1, mask=mask)
    # W2_t = W2 - s (dW2 + lr X2^T G2) ; Z2bar = X2bar @ W2_t + b2_t
    sum_W2 = tl.load(dW2 + tile, mask=mask & (pos > 0), other=0) + x2[:, None] * g2[None, :]
    sum_b2 += g2
    zbar2 = tl.sum(xbar2[:, None] * (w2.to(tl.float32) - scale * sum_W2), 0) + bias2 - scale * sum_b2
    if last:
        x = load_weights(weights2, low2, tile, mask, PLANES) - scale * sum_W2
        store_weights(weights2, low2, tile, x, mask, PLANES)
    else:
        tl.store(dW2 + tile, sum_W2, mask=mask)
    xhat, _ = normalise(tl.where(valid, zbar2, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.debug_barrier()  # every warp has read the position and the biases
    if last:
        tl.store(position + pid, 0)
        tl.store(b1 + pid * F + rf, bias1 - scale * sum_b1, mask=wide)
        tl.store(b2 + pid * D + rd, bias2 - scale * sum_b2, mask=valid)
    else:
        tl.store(position + pid, pos + 1)
        tl.store(db1 + pid * F + rf, sum_b1, mask=wide)
        tl.store(db2 + pid * D + rd, sum_b2, mask=valid)
