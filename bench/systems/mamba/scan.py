"""Mamba and Mamba-2 in PyTorch, vectorised over chunks: reference for long prompts.

A prompt is split into pieces, and a piece into chunks. All chunks of a piece are scanned in parallel from a zero state.
Then the state is carried from chunk to chunk. A piece of n tokens takes about 2 sqrt(n) steps.
"""

import math
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.systems.blockwise import visiting

PIECE_ELEMENTS = 1 << 26  # elements in a piece's states, one per token; three such float32 tensors take 0.3 GB each


def selective_scan(decay: Tensor, inputs: Tensor, state: Tensor) -> Tensor:
    """Return x [B, T, ...] with x_t = decay_t * x_(t-1) + inputs_t, from x_0 = `state` [B, ...].

    decay [B, T, ...], within [0, 1], is broadcast to inputs [B, T, ...]; both are overwritten.
    """
    tokens = inputs.shape[1]
    length = max(1, math.isqrt(tokens))
    whole = tokens // length * length
    products, states = (x[:, :whole].unflatten(1, (-1, length)) for x in (decay, inputs))
    factors, scanned = products.unbind(2), states.unbind(2)  # per chunk, scanned from zero
    for t in range(1, length):
        scanned[t].addcmul_(factors[t], scanned[t - 1])
    products.cumprod_(2)  # decays since the chunk's start
    for product, some in zip(products.unbind(1), states.unbind(1), strict=True):
        some.addcmul_(product, state[:, None])
        state = some[:, -1]
    for factor, some in zip(decay[:, whole:].unbind(1), inputs[:, whole:].unbind(1), strict=True):
        state = some.addcmul_(factor, state)
    return inputs


def stepwise(decay: Tensor, inputs: Tensor, state: Tensor, stored: torch.dtype) -> Tensor:
    """Return x [B, T, ...]: x_t = decay_t * r(x_(t-1)) + inputs_t, where r rounds to `stored`.

    x_0 is `state` [B, ...]. decay [B, T, ...] is broadcast to inputs [B, T, ...], which are overwritten.
    """
    for factor, x in zip(decay.unbind(1), inputs.unbind(1), strict=True):
        state = x.addcmul_(factor, state.to(stored).to(x.dtype))
    return inputs


def state_space(
    u: Tensor, step: Tensor, A: Tensor, B: Tensor, C: Tensor, stored: torch.dtype | None = None, prompt: int = 0
) -> Tensor:
    """Run a selective state-space model from x_0 = 0; return its outputs y [B, T, ...].

    x_t = exp(step_t A) x_(t-1) + step_t u_t B_t; y_t = sum over N of x_t C_t.
    u, step [B, T, ...]; A [..., N]; B, C [B, T, ..., N]. Each `...` is broadcast to that of u.
    stored: if not None, from t = `prompt` on, x_t is rounded to this dtype before it is carried to the next token.
    """
    state = u.new_zeros(len(u), *u.shape[2:], B.shape[-1])
    piece, tokens = max(1, PIECE_ELEMENTS // state.numel()), u.shape[1]
    read = min(prompt, tokens) if stored else tokens
    found = []
    for begin, end, scan in ((0, read, selective_scan), (read, tokens, partial(stepwise, stored=stored or u.dtype))):
        for low in range(begin, end, piece):
            some_u, some_step, some_B, some_C = (x[:, low : min(end, low + piece)] for x in (u, step, B, C))
            inputs = (some_step * some_u).unsqueeze(-1) * some_B
            states = scan((some_step.unsqueeze(-1) * A).exp_(), inputs, state)
            state = states[:, -1].clone()
            found.append(torch.einsum("...n,...n->...", states, some_C))
    return torch.cat(found, 1)


class ScannedMamba:
    """Reference that runs transformers' Mamba model `inner` with this module's scan on `device`."""

    stored: torch.dtype | None = None  # dtype of the checked model's state from token `prompt` on; see `state_space`
    prompt = 0

    def __init__(self, inner: Any, device: torch.device | str) -> None:
        self.inner, self.device = inner, torch.device(device)

    def init_state(self, batch: int, context: int) -> None:
        """Return None: this reference needs no state, because it reads every prompt from its start."""

    def prefill(self, ids: Tensor, state: None) -> tuple[Tensor, None]:
        return self.logits(ids, 1)[:, 0], None

    @torch.no_grad()
    def logits(self, ids: Tensor, last: int) -> Tensor:
        backbone = self.inner.backbone
        h = F.embedding(ids.to(self.device), backbone.embeddings.weight.to(self.device))
        for layer in backbone.layers:
            with visiting(layer, self.device):
                h = h + self._mix(layer.mixer, _normed(h, layer.norm))
        with visiting(backbone.norm_f, self.device):
            return F.linear(_normed(h[:, -last:], backbone.norm_f), self.inner.lm_head.weight.to(self.device))

    def _mix(self, mixer: Any, x: Tensor) -> Tensor:
        """Return the mixer's output for x, both [B, T, C] (arXiv 2312.00752, algorithm 2, figure 3)."""
        u, gate = mixer.in_proj(x).chunk(2, -1)
        u = _convolved(u, mixer.conv1d)
        step, B, C = mixer.x_proj(u).split((mixer.time_step_rank, mixer.ssm_state_size, mixer.ssm_state_size), -1)
        step, A = F.softplus(mixer.dt_proj(step)), -mixer.A_log.exp()  # [B, T, E] and [E, N]
        y = state_space(u, step, A, B.unsqueeze(2), C.unsqueeze(2), self.stored, self.prompt) + mixer.D * u
        return mixer.out_proj(y * F.silu(gate))


class ScannedMamba2(ScannedMamba):
    """Reference that runs transformers' Mamba-2 model `inner` with this module's scan."""

    def _mix(self, mixer: Any, x: Tensor) -> Tensor:
        """Return the mixer's output [B, T, C] for x [B, T, C] (arXiv 2405.21060, section 2.1)."""
        groups, size, heads = mixer.n_groups, mixer.ssm_state_size, mixer.num_heads
        gate, mixed, step = mixer.in_proj(x).split((mixer.intermediate_size, mixer.conv_dim, heads), -1)
        mixed = _convolved(mixed, mixer.conv1d)
        u, B, C = mixed.split((mixer.intermediate_size, groups * size, groups * size), -1)
        u = u.unflatten(-1, (heads, -1))  # [B, T, H, P]
        step = F.softplus(step + mixer.dt_bias).clamp(*mixer.time_step_limit).unsqueeze(-1)  # [B, T, H, 1]
        A = -mixer.A_log.exp()[:, None, None]  # [H, 1, 1]
        B, C = (x.unflatten(-1, (groups, 1, size)).repeat_interleave(heads // groups, 2) for x in (B, C))
        y = state_space(u, step, A, B, C, self.stored, self.prompt) + mixer.D[:, None] * u
        y = y.flatten(-2) * F.silu(gate)
        grouped = y.unflatten(-1, (groups, -1))
        y = grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + mixer.norm.variance_epsilon)
        return mixer.out_proj(y.flatten(-2) * mixer.norm.weight)


def _convolved(x: Tensor, convolution: nn.Conv1d) -> Tensor:
    return F.silu(convolution(x.mT)[..., : x.shape[1]].mT)


def _normed(x: Tensor, norm: Any) -> Tensor:
    return norm.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon))
