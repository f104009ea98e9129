"""Where is a TTT backend put in? The inner operator: what lies between the projections and the norm after the heads."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bench.models.config import ConfigError
from bench.models.layers import Rotation, rotate_interleaved
from tk_kernels.ttt_linear import reference as ttt_linear
from tk_kernels.ttt_mlp import reference as ttt_mlp

FORMS = ("dual", "primal")


class Tokens(NamedTuple):
    """A layer's projections: q, k (before RoPE), v [B, T, H, D] and lr_logits x_j . w_h + c_h [B, T, H].

    A generate step has no T. lr_logits are in at least float32. `ready`: q and k have RoPE already, and lr_logits are
    the learning rates lr_j made of them.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    lr_logits: Tensor
    ready: bool = False

    def first(self) -> "Tokens":
        """The first token alone, without T."""
        return Tokens(self.q[:, 0], self.k[:, 0], self.v[:, 0], self.lr_logits[:, 0], self.ready)


@dataclass(frozen=True)
class Learner:
    """A layer's settings: token_scale s_i [m], LayerNorm weight and bias [H, D], base_lr, RoPE cos and sin [m, D/2]."""

    token_scale: Tensor
    ln_weight: Tensor
    ln_bias: Tensor
    base_lr: float
    rope: Rotation


class Operator(Protocol):
    """What a layer asks of a backend. RoPE and the learning rate are inside, so that a kernel may fuse them.

    A state is the operator's own: a named tuple or dataclass of tensors, changed in place by every call and never
    moved, so that a CUDA graph stays valid.
    """

    def init_state(self, weights: Sequence[Tensor], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """The state before the first token, from the layer's (W1, b1) or (W1, b1, W2, b2), in `dtype`."""
        ...

    def forward(self, tokens: Tokens, learner: Learner, state: Any, start: int | None = None) -> Tensor:
        """out [B, T, H, D] in q's dtype; moves `state` T tokens on, from any position inside a mini-batch.

        `start` is that position where the caller knows it, which saves reading it from the device.
        """
        ...

    def generate_state(self, state: Any) -> Any:
        """What generate_step works on, made from what forward left: a copy in another form, or `state` itself."""
        ...

    def generate_step(self, tokens: Tokens, learner: Learner, state: Any) -> Tensor:
        """out [B, H, D]; moves `state` one token on, each sequence from its own position, without a host wait."""
        ...


class TorchOperator:
    """The reference in PyTorch, for one learner ("linear", "mlp") and one form ("dual", "primal").

    In the primal form forward keeps the state of the dual one, which holds all that is known; a step needs the
    accumulators that generate_state makes of it.
    """

    def __init__(self, learner: str, form: str = "dual") -> None:
        if form not in FORMS:
            raise ConfigError(f"form {form}: unknown; there are {', '.join(FORMS)}")
        self.form = form
        self._reference: ModuleType = ttt_linear if learner == "linear" else ttt_mlp

    def init_state(self, weights: Sequence[Tensor], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """See Operator.init_state."""
        return self._reference.init_state(*weights, batch, mini_batch=mini_batch, dtype=dtype)

    def forward(self, tokens: Tokens, learner: Learner, state: Any, start: int | None = None) -> Tensor:
        """See Operator.forward. Raises ValueError for primal accumulators, which cannot be continued by rows."""
        if _is_primal(state):
            raise ValueError("prefill: needs the state that init_state or prefill gave, not that of generate_state")
        inputs = prefill_inputs(tokens, learner, state.position)
        out, after = self._reference.forward(*inputs, *norm(learner), state, form=self.form, start=start)
        overwrite(state, after)
        return out

    def generate_state(self, state: Any) -> Any:
        """See Operator.generate_state: the primal form's accumulators, or in the dual form `state` itself."""
        return self._reference.primal_state(state) if self.form == "primal" and not _is_primal(state) else state

    def generate_step(self, tokens: Tokens, learner: Learner, state: Any) -> Tensor:
        """See Operator.generate_step. Raises ValueError for a state that is not of this operator's form."""
        if _is_primal(state) != (self.form == "primal"):
            raise ValueError(f"generate_step: a state of another form than {self.form}; make one with generate_state")
        inputs = _with_edges(tokens, learner, state.position)
        return self._reference.generate_step(*inputs, *norm(learner), state, inplace=True)[0]


def _is_primal(state: Any) -> bool:
    return not hasattr(state, "k_rows")


def prefill_inputs(tokens: Tokens, learner: Learner, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v, lr of the reference's forward, for sequences that stand at `position` [B] in their mini-batch."""
    ahead = torch.arange(tokens.q.shape[1], device=position.device)
    return _with_edges(tokens, learner, (position[:, None] + ahead) % learner.token_scale.shape[0])


def norm(learner: Learner) -> tuple[Tensor, Tensor, Tensor]:
    """What every operator takes after its tokens: token_scale, ln_weight, ln_bias."""
    return learner.token_scale, learner.ln_weight, learner.ln_bias


def _with_edges(tokens: Tokens, learner: Learner, position: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q and k rotated by `position` inside the mini-batch, v, and lr_j = base_lr * sigmoid(logit_j) / D."""
    if tokens.ready:
        return tokens.q, tokens.k, tokens.v, tokens.lr_logits
    cos, sin = (table[position].unsqueeze(-2) for table in learner.rope)
    q, k = (rotate_interleaved(x, (cos, sin)) for x in (tokens.q, tokens.k))
    return q, k, tokens.v, learning_rate(tokens, learner)


def learning_rate(tokens: Tokens, learner: Learner) -> Tensor:
    """lr_j = base_lr * sigmoid(logit_j) / D."""
    if tokens.ready:
        return tokens.lr_logits
    return torch.sigmoid(tokens.lr_logits) * (learner.base_lr / tokens.q.shape[-1])


def overwrite(state: Any, after: Any) -> None:
    """Copy `after` into `state`, tensor by tensor; those that are the same tensor already are left alone."""
    for old, new in zip(_tensors(state), _tensors(after), strict=True):
        if old is not new:
            old.copy_(new)


def _tensors(state: Any) -> list[Tensor]:
    """Every tensor of a named tuple or dataclass, those in its tuples included."""
    values = [getattr(state, field.name) for field in fields(state)] if is_dataclass(state) else list(state)
    nested = [value if isinstance(value, tuple) else (value,) for value in values]
    return [value for group in nested for value in group if isinstance(value, Tensor)]
