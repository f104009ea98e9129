"""The inner loop of a TTT layer: its inputs, and the operator in PyTorch.

Shapes: B sequences, T tokens per sequence, H heads of dimension D, m tokens per mini-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.models.config import ConfigError
from tk_kernels import FORMS
from tk_kernels.reference.layer import Rotation, rotate_interleaved
from tk_kernels.reference.token_rows import mapped, overwrite
from tk_kernels.ttt_linear import reference as ttt_linear
from tk_kernels.ttt_mlp import reference as ttt_mlp


class Projections(NamedTuple):
    """The inner loop's inputs: q, k, v [B, T, H, D] and lr_logits [B, T, H].

    A generate step's inputs have no T axis.
    lr_logits: x_j . w_h + c_h for input x_j of token j and learned w_h, c_h of head h, in at least float32.
    ready: whether RoPE has been applied to q and k, and lr_logits holds learning rates instead of their logits.
    pdl: whether a generate step's kernels may start before earlier kernels end (programmatic dependent launch).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    lr_logits: Tensor
    ready: bool = False
    pdl: bool = False


@dataclass(frozen=True)
class OuterParameters:
    """The parameters of a layer's inner loop that are outside its state.

    m: mini-batch size. token_scale [m]: factor of the update at each position. ln_weight, ln_bias [H, D]: LayerNorm.
    base_lr: factor in the inner learning rate, base_lr * sigmoid(lr_logits) / D.
    rope: cos and sin [m, D/2] of position * rope_theta^(-2i/D) for each position in a mini-batch and i < D/2.
    """

    token_scale: Tensor
    ln_weight: Tensor
    ln_bias: Tensor
    base_lr: float
    rope: Rotation
    rope_theta: float

    @property
    def learned(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.token_scale, self.ln_weight, self.ln_bias  # the order in every operator's arguments


class TorchOperator:
    """The inner loop in PyTorch, including RoPE and learning rates; subclasses use kernels.

    A state is a named tuple or dataclass of tensors. Calls update it in place, so a CUDA graph stays valid.
    learner: "linear" (TTT-Linear) or "mlp" (TTT-MLP). form: "dual" or "primal".
    `forward` takes a dual state. `generate_step` takes a result of `generate_state`.
    """

    one_block_per_head = False  # whether `forward` is one kernel with one thread block per head and sequence

    def __init__(self, learner: str, form: str = "dual") -> None:
        if form not in FORMS:
            raise ConfigError(f"form {form}: unknown; there are {', '.join(FORMS)}")
        self.form = form
        self._reference: ModuleType = ttt_linear if learner == "linear" else ttt_mlp

    def init_state(self, weights: Sequence[Tensor], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """Return the initial state of `batch` sequences, from weights (W1, b1) or (W1, b1, W2, b2)."""
        return self._reference.init_state(*weights, batch=batch, mini_batch=mini_batch, dtype=dtype)

    def init_states(self, layers: Sequence[Sequence[Tensor]], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """Return all layers' initial states, stacked on axis 0. layers: each layer's initial weights."""
        one = self.init_state(layers[0], 1, mini_batch, dtype)
        states = type(one)(*(x.new_empty(len(layers), batch, *x.shape[1:]) for x in one))
        self.restart_states(states, layers)
        return states

    def restart_states(self, states: Any, layers: Sequence[Sequence[Tensor]]) -> None:
        """Reset a result of `init_states` in place: weights from `layers`, zeros in other tensors."""
        parameters = list(zip(*layers, strict=True))
        for each, weights in zip(states, parameters, strict=False):
            each.copy_(torch.stack([weight.detach() for weight in weights]).view(len(layers), 1, *each.shape[2:]))
        for each in states[len(parameters) :]:
            each.zero_()

    def forward(self, projections: Projections, outer: OuterParameters, state: Any, start: int | None = None) -> Tensor:
        """Return the output [B, T, H, D] in q's dtype, and advance `state` by T tokens.

        start: token 0's position in its mini-batch; None to read the position from `state`, on the device.
        Raises ValueError for a primal state.
        """
        if _is_primal(state):
            raise ValueError("prefill: needs a state of init_state or prefill, not of generate_state")
        q, k, v, lr = ready_for_forward(projections, outer, state.position)[:4]
        out, after = self._reference.forward(q, k, v, lr, *outer.learned, state, form=self.form, start=start)
        overwrite(state, after)
        return out

    def generate_state(self, state: Any) -> Any:
        """Return `state` for `generate_step`, in the primal form if this operator has that form."""
        return self._reference.primal_state(state) if self.form == "primal" and not _is_primal(state) else state

    def generate_step(self, projections: Projections, outer: OuterParameters, state: Any) -> Tensor:
        """Return the output [B, H, D] for one token, and advance `state`, without a host sync.

        Sequences can have different positions. Raises ValueError unless the state's form (dual, primal) is `self.form`.
        """
        if _is_primal(state) != (self.form == "primal"):
            raise ValueError(f"generate_step: a state of another form than {self.form}; make one with generate_state")
        q, k, v, lr = ready_at(projections, outer, state.position)[:4]
        return self._reference.generate_step(q, k, v, lr, *outer.learned, state, inplace=True)[0]


def _is_primal(state: Any) -> bool:
    return not hasattr(state, "k_rows")


def ready_for_forward(projections: Projections, outer: OuterParameters, position: Tensor) -> Projections:
    """Apply RoPE and compute learning rates for T consecutive tokens of each sequence.

    position [B]: position of token 0 in its mini-batch. Ready projections are returned unchanged.
    """
    ahead = torch.arange(projections.q.shape[1], device=position.device)
    return ready_at(projections, outer, (position[:, None] + ahead) % outer.token_scale.shape[0])


def ready_at(projections: Projections, outer: OuterParameters, position: Tensor) -> Projections:
    """Apply RoPE and compute learning rates; return ready projections unchanged.

    position [B, T], or [B] for a step: each token's position in its mini-batch.
    """
    if projections.ready:
        return projections
    cos, sin = (table[position].unsqueeze(-2) for table in outer.rope)
    q, k = (rotate_interleaved(x, (cos, sin)) for x in projections[:2])
    return Projections(q, k, projections.v, learning_rates(projections, outer), ready=True)


def learning_rates(projections: Projections, outer: OuterParameters) -> Tensor:
    """Return base_lr * sigmoid(lr_logits) / D, or lr_logits itself if it already holds the rates (`ready`)."""
    if projections.ready:
        return projections.lr_logits
    return torch.sigmoid(projections.lr_logits) * (outer.base_lr / projections.q.shape[-1])


def rows_of(state: Any, rows: slice | Tensor | list[int]) -> Any:
    """Return the state of the sequences `rows`: views for a slice, copies for indices."""
    return mapped(state, lambda tensor: tensor[rows])
