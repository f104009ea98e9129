"""The inner loop on the project's kernels: forward in CUDA or Triton, generate in Triton."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from bench.models.operator import (
    OuterParameters,
    Projections,
    TorchOperator,
    learning_rates,
    ready_at,
    ready_for_forward,
)
from tk_kernels import ROPE_THETA
from tk_kernels.forward.operator import THUNDERKITTENS, forward_packed
from tk_kernels.generate.common import rope_table
from tk_kernels.generate.slots import read_slots, write_slots
from tk_kernels.packed import Packed
from tk_kernels.reference.layer import Rotation


class KernelOperator(TorchOperator):
    """The inner loop on the project's kernels.

    form: form of generate, "dual" or "primal".
    precision: precision of generate's state, a key of `tk_kernels.generate.common.PRECISIONS`.
    forward_in_pytorch: run `forward` in plain PyTorch; `forward_packed` ignores this.
    backend: "thunderkittens", "triton" or "reference" for `forward`; "" for the fastest.
    `forward_packed` runs Triton, except if all sequences form one batch that the Hopper kernel supports. Then it runs
    `backend`.
    """

    def __init__(
        self,
        learner: str,
        form: str = "dual",
        precision: str = "planes",
        forward_in_pytorch: bool = False,
        backend: str = "",
    ) -> None:
        super().__init__(learner)
        self._generate = import_module(f"tk_kernels.ttt_{learner}.generate")
        self._ops = import_module(f"tk_kernels.ttt_{learner}.ops")
        self._launch = import_module(f"tk_kernels.ttt_{learner}.forward").launch_packed
        self._forward = None if forward_in_pytorch else self._ops.forward
        self.one_block_per_head = self._forward is not None
        self._generate_form, self._precision, self._backend = form, precision, backend
        self._table_of: Tensor | None = None

    def forward(self, projections: Projections, outer: OuterParameters, state: Any, start: int | None = None) -> Tensor:
        if self._forward is None:
            return super().forward(projections, outer, state, start)
        rope = not projections.ready and outer.rope_theta == ROPE_THETA  # the kernel's own RoPE has this theta only
        if not (rope or projections.ready):
            projections = ready_for_forward(projections, outer, state.position)
        q, k, v = projections[:3]
        lr = learning_rates(projections, outer)
        options = {"start": start, "rope": rope, "inplace": True, "backend": self._backend}
        return self._forward(q, k, v, lr, *outer.learned, state, **options)[0]

    def forward_packed(
        self, projections: Projections, outer: OuterParameters, state: Any, initial: Sequence[Tensor], sequences: Packed
    ) -> Tensor:
        """Run the inner loop on N packed tokens of some sequences; return its output [1, N, H, D].

        projections: q, k, v [1, N, H, D] and lr_logits [1, N, H].
        state: a generate state; the states of these sequences are updated in place.
        initial: the weights (W1, b1, ...) that new sequences start from.
        sequences: the tokens, the number of earlier tokens and the row in `state` of each sequence.
        """
        mini_batch = len(outer.token_scale)
        if not projections.ready:
            projections = ready_at(projections, outer, (sequences.positions % mini_batch)[None])
        if sequences.length and self._ops.choice(projections.q, mini_batch) == THUNDERKITTENS:
            return self._forward_equal(projections, outer, state, initial, sequences)
        q, k, v, lr = (x[0] for x in projections[:4])
        return forward_packed(self._launch, (q, k, v, lr), outer.learned, tuple(initial), state, sequences)[None]

    def _forward_equal(
        self, projections: Projections, outer: OuterParameters, state: Any, initial: Sequence[Tensor], sequences: Packed
    ) -> Tensor:
        batch, slots = len(sequences.slots), sequences.slots
        weights = read_slots(state, slots, sequences.start, initial)
        rows = [x.new_empty((batch, *x.shape[1:]), dtype=torch.float32) for x in state.accumulated]
        whole = state.learner.state(*weights, *rows, torch.zeros_like(sequences.start))
        tokens = (x[0].unflatten(0, (batch, sequences.length)) for x in projections[:4])
        out, after = self._ops.forward(*tokens, *outer.learned, whole, start=0, inplace=True, backend=self._backend)
        write_slots(state, slots, after[:-1])
        return out.flatten(0, 1)[None]

    def generate_state(self, state: Any) -> Any:
        """Copy a forward state into generate's form and precision; keep a generate state as it is."""
        if isinstance(state, self._generate.GenerateState):
            return state
        return self._generate.GenerateState.from_state(state, self._generate_form, self._precision)

    def generate_step(self, projections: Projections, outer: OuterParameters, state: Any) -> Tensor:
        inputs = *projections[:4], *outer.learned, state
        if projections.ready:
            return self._generate.generate_step(*inputs, pdl=projections.pdl)
        return self._generate.generate_step(*inputs, rope=self._rope_table(outer.rope), base_lr=outer.base_lr)

    def _rope_table(self, rope: Rotation) -> Tensor:
        if self._table_of is not rope[0]:  # all layers and generate steps use the same table
            self._table, self._table_of = rope_table(*rope), rope[0]
        return self._table
