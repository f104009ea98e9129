"""TTT-Linear generate in Triton: one token for each sequence of a large batch, one launch that a CUDA graph can hold.

Two forms of the function in `reference.py` (ttt_layer.md, "Three forms"):

dual    caches the rows of K and lr * G inside a mini-batch, reads W once per token, rewrites it once in m tokens;
        on Hopper with 16 bits per weight the kernel of `generate_sm90.py` runs

primal  has the running sum of lr * K^T G next to W, reads and writes it at every token (arXiv 2407.04620, 3.1)

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
    dependent_launch,
    dot_type,
    float_copy,
    gathered_rows,
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
from tk_kernels.ttt_linear.reference import LinearPrimalState, LinearState

__all__ = ["GenerateState", "available", "generate_step"]


@dataclass
class GenerateState:
    """State of `generate_step`, updated in place at every token.

    weights [B, H, D, D] in the precision's type (for "planes" the high one). low [B, H, D, D] int16 or None.
    b [B, H, D] float32. position [B, H] int32, the same for all heads of a sequence.
    gathered: data of the current mini-batch. Dual form: rows of K and lr * G [B, H, m, D] in the precision's row type.
    Primal form: dW [B, H, D, D] and db [B, H, D] float32.
    slots [B], int32 or int64, dual form only: sequence b uses index slots[b] of weights, low, b and gathered, which may
    hold more than B sequences, at any stride. position [B, H] is then only read.
    """

    form: str
    precision: str
    mini_batch: int
    weights: torch.Tensor
    low: torch.Tensor | None
    b: torch.Tensor
    position: torch.Tensor
    gathered: tuple[torch.Tensor, torch.Tensor]
    slots: torch.Tensor | None = None

    @classmethod
    def from_state(cls, state: LinearState, form: str = "dual", precision: str = "planes") -> GenerateState:
        """Convert the state after forward, at any position, to this form and precision. Copies all tensors."""
        check_form(form, precision)
        weights, low = by_sequences(lambda W: store(W, precision), state.W)
        position = state.position[:, None].repeat(1, state.W.shape[1]).to(torch.int32)
        sums = _running_sums if form == "primal" else None
        gathered = gathered_rows(state.position, (state.k_rows, state.g_rows), PRECISIONS[precision].rows, sums)
        return cls(form, precision, state.k_rows.shape[2], weights, low, float_copy(state.b), position, gathered)

    def to_state(self) -> LinearState | LinearPrimalState:
        """Convert to the reference's state: rows for the dual form, gradient sums for the primal. Float32 copies."""
        W, b, position = restore(self.weights, self.low), self.b.clone(), self.position[:, 0].clone()
        first, second = self.gathered
        if self.form == "dual":
            return LinearState(W, b, float_copy(first), float_copy(second), position)
        running = (self.position > 0)[..., None]  # a new mini-batch ignores the old sums
        return LinearPrimalState(W, b, first * running[..., None], second * running, position)

    def tensors(self) -> list[torch.Tensor]:
        """List the state's tensors, without slots, to snapshot them or to sum their bytes."""
        kept = (self.weights, self.low, self.b, self.position, *self.gathered)
        return [x for x in kept if x is not None]


def _running_sums(k: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return dW and db, float32, of rows of K and of lr * G [B, H, m, D], summed in float64."""
    return (k.double().mT @ g.double()).float(), g.double().sum(2).float()


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
    B, (_, H, D) = len(gstate.position), gstate.b.shape
    out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
    tokens = {"q": q, "k": k, "v": v, "out": out}
    parameters = {"token_scale": token_scale, "ln_weight": ln_weight, "ln_bias": ln_bias}
    s = gstate
    check_step(tokens, lr, parameters, rope, (B, H, D), s.mini_batch, s.b)
    check_slots(s.slots, s.form, B)
    if not B * H:
        return out
    launch = launch or default_launch(s)
    check_launch(launch, suits_sm90(s))
    strides = {"w_stride": s.weights.stride(0), "b_stride": s.b.stride(0), "row_stride": s.gathered[0].stride(0)}
    paged = strides | {"slots": s.slots, "SLOTS": s.slots is not None} if s.form == "dual" else {}
    if launch.sm90:
        from tk_kernels.ttt_linear.generate_sm90 import dual  # a late import: few machines have Gluon

        dual.run(
            q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope, s.weights, s.low, s.b, *s.gathered, s.position,
            q.stride(0), k.stride(0), v.stride(0), out.stride(0), lr.stride(0), base_lr or 0.0,
            H=H, m=s.mini_batch, PLANES=s.low is not None, ROPE=rope is not None, LOGITS=base_lr is not None,
            grid=(B * H,), warmup=compile_only, num_warps=launch.warps, maxnreg=launch.registers or None,
            **dependent_launch(pdl), **paged,
        )  # fmt: skip
        return out
    kernel = _dual if s.form == "dual" else _primal
    kernel.run(
        q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope, s.weights, s.low, s.b, *s.gathered, s.position,
        q.stride(0), k.stride(0), v.stride(0), out.stride(0), lr.stride(0), base_lr or 0.0,
        H=H, D=D, DP=triton.next_power_of_2(D), m=s.mini_batch, MP=max(16, triton.next_power_of_2(s.mini_batch)),
        PLANES=s.low is not None, ROPE=rope is not None, LOGITS=base_lr is not None,
        BLOCK=min(launch.block, triton.next_power_of_2(D)), DOT=dot_type(s.gathered[0]),
        grid=(B * H,), warmup=compile_only, num_warps=launch.warps, maxnreg=launch.registers or None, **paged,
    )  # fmt: skip
    return out


def default_launch(state: GenerateState) -> Tuning:
    """Return the row of `tuning.toml` for this state; its field `sm90` selects the kernel."""
    return tuning("ttt_linear", state.form, state.precision, tuned_as(state))


def tuned_as(state: GenerateState) -> str:
    """Return the name of the section of `tuning.toml` for this state's kernel and GPU."""
    return section_name(suits_sm90(state), state.b.device)


def suits_sm90(state: GenerateState) -> bool:
    """Whether the kernel of `generate_sm90.py` supports the state: dual form, 16-bit rows, D = 64, m at most 16."""
    in_16_bits = state.form == "dual" and state.precision != "float32"
    return in_16_bits and state.b.shape[2] == 64 and state.mini_batch <= 16


@jit
def _dual(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope, weights, low, b, rows_k, rows_g, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr, slots, w_stride, b_stride, row_stride,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd, rm = tl.arange(0, DP), tl.arange(0, MP)
    valid = rd < D
    pos = tl.load(position + pid)
    slot = slot_of(slots, seq, SLOTS)
    weights += slot * w_stride + head * (D * D)
    b += slot * b_stride + head * D
    rows_k += slot * row_stride + head * (m * D)
    rows_g += slot * row_stride + head * (m * D)
    if PLANES:
        low += slot * w_stride + head * (D * D)
    w = tl.load(weights + rd[:, None] * D + rd[None, :], mask=valid[:, None] & valid[None, :], other=0)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias = tl.load(b + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    rows_at = rm[:, None] * D + rd[None, :]
    cached = (rm[:, None] < pos) & valid[None, :]
    past_k = tl.load(rows_k + rows_at, mask=cached, other=0)
    past_g = tl.load(rows_g + rows_at, mask=cached, other=0)

    # Z = k @ W + b ; g = lr * G, rounded as it will be cached
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    eta = learning_rate(rate, base_lr, D, LOGITS)
    wf = w.to(tl.float32)
    z = tl.sum(kf[:, None] * wf, 0) + bias
    zbar = tl.sum(qf[:, None] * to_float32_again(w), 0) + bias
    g = eta * ln_l2_grad(z, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    g = g.to(rows_g.dtype.element_ty).to(tl.float32)
    # Zbar = q @ W + b - s_i * sum_{j <= i} (q . k_j + 1) g_j
    weight = tl.sum(qf[None, :] * past_k.to(tl.float32), 1) + 1.0
    step = tl.sum(weight[:, None] * past_g.to(tl.float32), 0) + (tl.sum(qf * kf, 0) + 1.0) * g
    zbar -= scale * step
    xhat, _ = normalise(tl.where(valid, zbar, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.debug_barrier()  # every warp has read the position and the state
    row = pos * D + rd
    tl.store(rows_k + row, kf.to(rows_k.dtype.element_ty), mask=valid)
    tl.store(rows_g + row, g.to(rows_g.dtype.element_ty), mask=valid)
    if not SLOTS:
        tl.store(position + pid, tl.where(pos < m - 1, pos + 1, 0))
    if pos == m - 1:
        # The mini-batch is complete: W -= s K^T g, b -= s sum(g)
        tl.store(b + rd, bias - scale * (tl.sum(past_g.to(tl.float32), 0) + g), mask=valid)
        tl.debug_barrier()  # the row just written is read back below
        full = (rm[:, None] < m) & valid[None, :]
        all_g = tl.load(rows_g + rows_at, mask=full, other=0)
        for first in range(0, D, BLOCK):
            rb = first + tl.arange(0, BLOCK)
            inside = rb < D
            block_k = tl.load(
                rows_k + rm[None, :] * D + rb[:, None],
                mask=(rm[None, :] < m) & inside[:, None],
                other=0,
            )
            tile = rb[:, None] * D + rd[None, :]
            mask = inside[:, None] & valid[None, :]
            update = tl.dot(block_k.to(DOT), all_g.to(DOT), input_precision="ieee")
            x = load_weights(weights, low, tile, mask, PLANES) - scale * update
            store_weights(weights, low, tile, x, mask, PLANES)


@jit
def _primal(
    q, k, v, out, lr, token_scale, ln_weight, ln_bias, rope, weights, low, b, dW, db, position,
    q_stride, k_stride, v_stride, out_stride, lr_stride, base_lr,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, m: tl.constexpr, MP: tl.constexpr,
    PLANES: tl.constexpr, ROPE: tl.constexpr, LOGITS: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    seq, head = pid // H, pid % H
    rd = tl.arange(0, DP)
    valid = rd < D
    pos = tl.load(position + pid)
    tile = pid * (D * D) + rd[:, None] * D + rd[None, :]
    mask = valid[:, None] & valid[None, :]
    w = tl.load(weights + tile, mask=mask, other=0)
    k_row, k_pair = load_token(k, seq * k_stride + head * D, rd, valid, ROPE)
    q_row, q_pair = load_token(q, seq * q_stride + head * D, rd, valid, ROPE)
    v_row = tl.load(v + seq * v_stride + head * D + rd, mask=valid, other=0)
    gamma = tl.load(ln_weight + head * D + rd, mask=valid, other=0)
    beta = tl.load(ln_bias + head * D + rd, mask=valid, other=0)
    bias = tl.load(b + pid * D + rd, mask=valid, other=0)
    rate = tl.load(lr + seq * lr_stride + head)
    scale = tl.load(token_scale + pos)
    cos, sin = load_angles(rope, pos, rd, valid, D, ROPE)
    # A new mini-batch ignores the stored sums, so no kernel clears them
    sum_W = tl.load(dW + tile, mask=mask & (pos > 0), other=0)
    sum_b = tl.load(db + pid * D + rd, mask=valid & (pos > 0), other=0)

    # Z = k @ W + b ; W_t = W - s (dW + lr K^T G)
    kf, qf = rotate(k_row, k_pair, cos, sin, ROPE), rotate(q_row, q_pair, cos, sin, ROPE)
    eta = learning_rate(rate, base_lr, D, LOGITS)
    wf = w.to(tl.float32)
    z = tl.sum(kf[:, None] * wf, 0) + bias
    g = eta * ln_l2_grad(z, v_row.to(tl.float32) - kf, gamma, beta, valid, D)
    sum_W += kf[:, None] * g[None, :]
    sum_b += g
    zbar = tl.sum(qf[:, None] * (wf - scale * sum_W), 0) + bias - scale * sum_b
    xhat, _ = normalise(tl.where(valid, zbar, 0.0), valid, D)
    tl.store(out + seq * out_stride + head * D + rd, (qf + gamma * xhat + beta).to(out.dtype.element_ty), mask=valid)

    tl.debug_barrier()  # every warp has read the position and the state
    if pos < m - 1:
        tl.store(position + pid, pos + 1)
        tl.store(dW + tile, sum_W, mask=mask)
        tl.store(db + pid * D + rd, sum_b, mask=valid)
    else:
        tl.store(position + pid, 0)
        tl.store(b + pid * D + rd, bias - scale * sum_b, mask=valid)
        x = load_weights(weights, low, tile, mask, PLANES) - scale * sum_W
        store_weights(weights, low, tile, x, mask, PLANES)
