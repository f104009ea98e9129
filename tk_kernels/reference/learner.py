"""Run the PyTorch reference of a learner f: forward over sequences, generate one token per sequence.

A learner defines the arithmetic of whole mini-batches and single tokens. This module checks the arguments, splits
sequences at mini-batch boundaries and, without `inplace`, does not change the caller's state.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from tk_kernels import FORMS
from tk_kernels.checks import (
    STATE_DTYPE,
    check_aligned,
    check_choice,
    check_outer,
    check_state,
    check_tokens,
    common_position,
)
from tk_kernels.reference.layer import Outer
from tk_kernels.reference.mini_batches import mini_batches_together, pieces
from tk_kernels.reference.token_rows import clone

SEQUENCES, TOKENS = "[B, T, H, D]", "[B, H, D]"  # layouts of forward and of generate_step

State = TypeVar("State", bound=tuple)  # weights at the mini-batch's start, and a row per token so far
PrimalState = TypeVar("PrimalState", bound=tuple)  # gradient sums instead of rows
Trace = TypeVar("Trace", bound=tuple)  # result of `train_`, from which `read` computes outputs
Method = TypeVar("Method", bound=Callable[..., Any])


def _in_its_dtypes(method: Method) -> Method:
    """Decorate a method, whose first argument must be a tensor, to run without autocast, which would round."""

    @wraps(method)
    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        x = arguments[0] if arguments else next(iter(named.values()))
        with torch.autocast(x.device.type, enabled=False):
            return method(self, *arguments, **named)

    return cast(Method, called)


class Learner(Generic[State, PrimalState, Trace]):
    """Base class of the reference of one learner f; its public methods: forward, generate_step, states, outputs.

    Subclasses define the other methods. A method whose name ends in _ advances `state` in place.
    """

    together: int  # most mini-batches per `train_`; fewer if they have more than 16 tokens

    def shapes(
        self, state: State | PrimalState, batch: int, heads: int, head_dim: int, mini_batch: int
    ) -> dict[str, tuple[int, ...]]:
        """Return the required shape of each tensor of the state, by name."""
        raise NotImplementedError

    def train_(self, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: State) -> Trace:
        """Train on whole mini-batches in order: advance `state`'s weights in place, return the trace for `read`."""
        raise NotImplementedError

    def read(self, q: Tensor, k: Tensor, lr: Tensor, outer: Outer, trace: Trace) -> Tensor:
        """Return the outputs [B, T, H, D] of whole mini-batches, all at once, from the trace of `train_`."""
        raise NotImplementedError

    def advance_(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        outer: Outer,
        state: State,
        form: str = "dual",
        start: int = 0,
    ) -> Tensor:
        """Return the outputs [B, n, H, D] of n tokens inside one mini-batch; advance `state` (with rows) in place.

        In the dual form sequences may have different positions. In the primal form all are at position `start`.
        """
        raise NotImplementedError

    def advance_sums_(self, q: Tensor, k: Tensor, v: Tensor, lr: Tensor, outer: Outer, state: PrimalState) -> Tensor:
        """Return the outputs [B, 1, H, D] of one token per sequence; advance `state` (with gradient sums) in place."""
        raise NotImplementedError

    @_in_its_dtypes
    @torch.no_grad()
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        state: State,
        *,
        form: str = "dual",
        start: int | None = None,
    ) -> tuple[Tensor, State]:
        """Return the outputs [B, T, H, D] of T tokens and the state after them; the given state is not changed.

        q, k, v [B, T, H, D]: float64, float32 or bfloat16. lr [B, T, H] = base_lr * sigmoid(...) / D.
        token_scale [m]; ln_weight, ln_bias [H, D]. form: "primal" computes W_t of every token, "dual" does not.
        state.position: any position inside the mini-batch, the same for all sequences. A caller that knows it passes
        `start`, which avoids reading the device. Raises ValueError for unsupported shapes, dtypes and forms.
        """
        outer = self._checked({"q": q, "k": k, "v": v}, lr, token_scale, ln_weight, ln_bias, SEQUENCES, state)
        check_choice("form", form, FORMS)
        mini_batch = len(token_scale)
        start = common_position(state.position, start, mini_batch)  # type: ignore[attr-defined]
        state, out = clone(state), torch.empty_like(q)
        together = mini_batches_together(mini_batch, self.together) if form == "dual" else 1
        for piece in pieces(q.shape[1], start, mini_batch, together):
            cut = slice(piece.low, piece.high)
            q_piece, k_piece, v_piece, lr_piece = q[:, cut], k[:, cut], v[:, cut], lr[:, cut]
            if form == "dual" and piece.whole:
                trace = self.train_(k_piece, v_piece, lr_piece, outer, state)
                out[:, cut] = self.read(q_piece, k_piece, lr_piece, outer, trace)
            else:
                first = (start + piece.low) % mini_batch
                out[:, cut] = self.advance_(q_piece, k_piece, v_piece, lr_piece, outer, state, form, first)
        return out, state

    @_in_its_dtypes
    @torch.no_grad()
    def generate_step(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        state: State | PrimalState,
        *,
        inplace: bool = False,
    ) -> tuple[Tensor, State | PrimalState]:
        """Run one token of each sequence, at any mix of positions; return out [B, H, D] and the state after the token.

        q, k, v [B, H, D], lr [B, H]. The type of the state selects the form: rows (dual) or gradient sums (primal).
        There is no host sync and no data-dependent control flow, so a CUDA graph can capture the call. A graph needs
        inplace=True, which updates the tensors of the given state.
        """
        outer = self._checked({"q": q, "k": k, "v": v}, lr, token_scale, ln_weight, ln_bias, TOKENS, state)
        state = state if inplace else clone(state)
        advance: Callable[..., Tensor] = self.advance_ if hasattr(state, "k_rows") else self.advance_sums_
        out = advance(q[:, None], k[:, None], v[:, None], lr[:, None], outer, state)
        return out[:, 0], state

    @_in_its_dtypes
    @torch.no_grad()
    def states(
        self,
        k: Tensor,
        v: Tensor,
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        state: State,
        *,
        start: int | None = None,
    ) -> tuple[Trace, State]:
        """Run forward's sequential part over whole mini-batches; return the trace for `outputs` and the next state."""
        outer = self._checked({"k": k, "v": v}, lr, token_scale, ln_weight, ln_bias, SEQUENCES, state)
        mini_batch = len(token_scale)
        start = common_position(state.position, start, mini_batch)  # type: ignore[attr-defined]
        check_aligned(k.shape[1], start, mini_batch)
        state = clone(state)
        return self.train_(k, v, lr, outer, state), state

    @_in_its_dtypes
    @torch.no_grad()
    def outputs(
        self,
        q: Tensor,
        k: Tensor,
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        trace: Trace,
    ) -> Tensor:
        """Run forward's parallel part over whole mini-batches: return out [B, T, H, D] from the trace of `states`."""
        outer = self._checked({"q": q, "k": k}, lr, token_scale, ln_weight, ln_bias, SEQUENCES)
        check_aligned(q.shape[1], 0, len(token_scale))
        return self.read(q, k, lr, outer, trace)

    def _checked(
        self,
        tokens: dict[str, Tensor],
        lr: Tensor,
        token_scale: Tensor,
        ln_weight: Tensor,
        ln_bias: Tensor,
        layout: str,
        state: State | PrimalState | None = None,
    ) -> Outer:
        """Check all arguments; return the outer parameters in the state's dtype. Raises ValueError if one is wrong."""
        check_tokens(tokens, lr, layout)
        x = next(iter(tokens.values()))
        heads, head_dim = x.shape[-2:]
        check_outer(token_scale, ln_weight, ln_bias, heads, head_dim)
        if state is not None:
            check_state(state, self.shapes(state, len(x), heads, head_dim, len(token_scale)), x.dtype)
        return Outer(*(parameter.to(STATE_DTYPE[x.dtype]) for parameter in (token_scale, ln_weight, ln_bias)))
