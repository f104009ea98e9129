"""The inner loop of a TTT layer, between its projections and the norm after its heads: interface and reference."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bench.models.config import ConfigError
from bench.models.layers import Rotation, rotate_interleaved
from tk_kernels import FORMS
from tk_kernels.reference.token_rows import overwrite
from tk_kernels.ttt_linear import reference as ttt_linear
from tk_kernels.ttt_mlp import reference as ttt_mlp


class Projections(NamedTuple):
    """A layer's projections of T tokens: q, k (before RoPE), v [B, T, H, D]; lr_logits x_j . w_h + c_h [B, T, H].

    A generate step has no T. lr_logits are in at least float32. With `ready`, q and k have RoPE already, and lr_logits
    holds the learning rates lr_j themselves. pdl: the step may be a dependent launch (`tk_kernels.generate.common`).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    lr_logits: Tensor
    ready: bool = False
    pdl: bool = False

    def first(self) -> "Projections":
        """The first token, without T."""
        q, k, v, lr_logits = (each[:, 0] for each in self[:4])
        return Projections(q, k, v, lr_logits, self.ready, self.pdl)


@dataclass(frozen=True)
class Learner:
    """A layer's parameters outside the state: token_scale s_i [m], LayerNorm weight and bias [H, D], base_lr, RoPE.

    rope: cos and sin [m, D/2] of position * rope_theta^(-2i/D).
    """

    token_scale: Tensor
    ln_weight: Tensor
    ln_bias: Tensor
    base_lr: float
    rope: Rotation
    rope_theta: float


class Operator(Protocol):
    """A backend of the inner loop. RoPE and the learning rate are its part, so that a kernel can fuse them.

    A state is of the operator's own type, a named tuple or dataclass of tensors. Calls change it in place and never
    move it, so that a CUDA graph stays valid.

    block_a_head: whether `forward` is one kernel with a thread block for each head of each sequence.
    """

    block_a_head: bool

    def init_state(self, weights: Sequence[Tensor], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """The state before the first token, from the layer's (W1, b1) or (W1, b1, W2, b2), in `dtype`."""
        ...

    def init_states(self, layers: Sequence[Sequence[Tensor]], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """`init_state` of every layer, its tensors with a leading axis of layers: few launches, however many."""
        ...

    def restart_states(self, states: Any, layers: Sequence[Sequence[Tensor]]) -> None:
        """Put what `init_states` made back before the first token, in place."""
        ...

    def forward(self, projections: Projections, learner: Learner, state: Any, start: int | None = None) -> Tensor:
        """out [B, T, H, D] in q's dtype; moves `state` T tokens on, from any position inside a mini-batch.

        `start` is that position; a caller that knows it saves reading it from the device.
        """
        ...

    def generate_state(self, state: Any) -> Any:
        """The state that generate_step takes, from the one that forward left: a copy in another form, or `state`."""
        ...

    def generate_step(self, projections: Projections, learner: Learner, state: Any) -> Tensor:
        """out [B, H, D]; moves `state` one token on, each sequence from its own position, without a host sync."""
        ...


class TorchOperator:
    """The reference in PyTorch, for one learner ("linear", "mlp") and one form ("dual", "primal").

    forward keeps the state of the dual form in both; in the primal form a step needs the accumulators that
    generate_state makes of it.
    """

    block_a_head = False

    def __init__(self, learner: str, form: str = "dual") -> None:
        if form not in FORMS:
            raise ConfigError(f"form {form}: unknown; there are {', '.join(FORMS)}")
        self.form = form
        self._reference: ModuleType = ttt_linear if learner == "linear" else ttt_mlp

    def init_state(self, weights: Sequence[Tensor], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """See Operator.init_state."""
        return self._reference.init_state(*weights, batch, mini_batch=mini_batch, dtype=dtype)

    def init_states(self, layers: Sequence[Sequence[Tensor]], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """See Operator.init_states."""
        one = self.init_state(layers[0], 1, mini_batch, dtype)
        states = type(one)(*(x.new_empty(len(layers), batch, *x.shape[1:]) for x in one))
        self.restart_states(states, layers)
        return states

    def restart_states(self, states: Any, layers: Sequence[Sequence[Tensor]]) -> None:
        """See Operator.restart_states. A state's first tensors are the weights, those after them begin as zeros."""
        parameters = list(zip(*layers, strict=True))
        for each, weights in zip(states, parameters, strict=False):
            each.copy_(torch.stack([weight.detach() for weight in weights]).view(len(layers), 1, *each.shape[2:]))
        for each in states[len(parameters) :]:
            each.zero_()

    def forward(self, projections: Projections, learner: Learner, state: Any, start: int | None = None) -> Tensor:
        """See Operator.forward. Raises ValueError for primal accumulators, which have lost the rows it needs."""
        if _is_primal(state):
            raise ValueError("prefill: needs the state that init_state or prefill gave, not that of generate_state")
        q, k, v, lr = ready_for_prefill(projections, learner, state.position)[:4]
        outer = outer_parameters(learner)
        out, after = self._reference.forward(q, k, v, lr, *outer, state, form=self.form, start=start)
        overwrite(state, after)
        return out

    def generate_state(self, state: Any) -> Any:
        """See Operator.generate_state: the primal form's accumulators, or in the dual form `state` itself."""
        return self._reference.primal_state(state) if self.form == "primal" and not _is_primal(state) else state

    def generate_step(self, projections: Projections, learner: Learner, state: Any) -> Tensor:
        """See Operator.generate_step. Raises ValueError for a state that is not of this operator's form."""
        if _is_primal(state) != (self.form == "primal"):
            raise ValueError(f"generate_step: a state of another form than {self.form}; make one with generate_state")
        q, k, v, lr = ready_at(projections, learner, state.position)[:4]
        return self._reference.generate_step(q, k, v, lr, *outer_parameters(learner), state, inplace=True)[0]


def _is_primal(state: Any) -> bool:
    return not hasattr(state, "k_rows")


def ready_for_prefill(projections: Projections, learner: Learner, position: Tensor) -> Projections:
    """Projections with RoPE and learning rates, of sequences that stand at `position` [B] in their mini-batch."""
    ahead = torch.arange(projections.q.shape[1], device=position.device)
    return ready_at(projections, learner, (position[:, None] + ahead) % learner.token_scale.shape[0])


def ready_at(projections: Projections, learner: Learner, position: Tensor) -> Projections:
    """Projections with RoPE by each token's `position` in its mini-batch, [B] of a step, and with learning rates."""
    if projections.ready:
        return projections
    cos, sin = (table[position].unsqueeze(-2) for table in learner.rope)
    q, k = (rotate_interleaved(x, (cos, sin)) for x in projections[:2])
    return Projections(q, k, projections.v, learning_rates(projections, learner), ready=True)


def learning_rates(projections: Projections, learner: Learner) -> Tensor:
    """lr_j = base_lr * sigmoid(logit_j) / D."""
    if projections.ready:
        return projections.lr_logits
    return torch.sigmoid(projections.lr_logits) * (learner.base_lr / projections.q.shape[-1])


def outer_parameters(learner: Learner) -> tuple[Tensor, Tensor, Tensor]:
    """token_scale, ln_weight, ln_bias: the arguments of every operator after its inputs."""
    return learner.token_scale, learner.ln_weight, learner.ln_bias


def rows_of(state: Any, rows: slice) -> Any:
    """The same state of some of its sequences; its tensors are views of the given one's."""
    if isinstance(state, Tensor):
        return state[rows]
    if is_dataclass(state) and not isinstance(state, type):
        return replace(state, **{field.name: rows_of(getattr(state, field.name), rows) for field in fields(state)})
    if isinstance(state, tuple):
        parts = [rows_of(part, rows) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return state
