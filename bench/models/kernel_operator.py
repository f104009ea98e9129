"""How do the project's kernels enter a TTT model? Prefill on ThunderKittens, generate on Triton, one state between."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bench.models.operator import Learner, Tokens, TorchOperator, learning_rate, norm, overwrite
from tk_kernels.generate.common import rope_table


class KernelOperator(TorchOperator):
    """The ThunderKittens forward and the Triton generate kernel of one learner ("linear", "mlp").

    form, precision: of the generate state, see `tk_kernels.ttt_linear.generate`. Prefill runs on the reference where
    the ThunderKittens kernel cannot (`prefill_on_reference`), for systems that measure generate alone.
    """

    def __init__(
        self, learner: str, form: str = "dual", precision: str = "planes", prefill_on_reference: bool = False
    ) -> None:
        super().__init__(learner)
        self._generate = import_module(f"tk_kernels.ttt_{learner}.generate")
        self._forward = None if prefill_on_reference else import_module(f"tk_kernels.ttt_{learner}.ops").forward
        self._generate_form, self._precision = form, precision
        self._angles: Tensor | None = None

    def forward(self, tokens: Tokens, learner: Learner, state: Any, start: int | None = None) -> Tensor:
        """See Operator.forward; from the start of a mini-batch, without a host synchronisation."""
        if self._forward is None:
            return super().forward(tokens, learner, state, start)
        q, k, v, lr = tokens.q, tokens.k, tokens.v, learning_rate(tokens, learner)
        out, after = self._forward(q, k, v, lr, *norm(learner), state, start=start, rope=not tokens.ready)
        overwrite(state, after)
        return out

    def init_state(self, weights: Sequence[Tensor], batch: int, mini_batch: int, dtype: torch.dtype) -> Any:
        """See Operator.init_state."""
        if self._angles is None:  # made on the host: once, as a copy from there waits for the device
            self._angles = rope_table(mini_batch, weights[0].shape[1], weights[0].device)
        return super().init_state(weights, batch, mini_batch, dtype)

    def generate_state(self, state: Any) -> Any:
        """See Operator.generate_state: the same numbers in the kernel's form and precision."""
        if isinstance(state, self._generate.GenerateState):
            return state
        return self._generate.GenerateState.from_state(state, self._generate_form, self._precision)

    def generate_step(self, tokens: Tokens, learner: Learner, state: Any) -> Tensor:
        """See Operator.generate_step; RoPE and the learning rate are the kernel's, unless the tokens have them."""
        edges = {} if tokens.ready else {"rope": self._angles, "base_lr": learner.base_lr}
        return self._generate.generate_step(*tokens[:4], *norm(learner), state, **edges)
