"""The inner loop on the project's kernels: forward in ThunderKittens or Triton, generate in Triton.

Some Triton kernels are in Gluon, its dialect with explicit layouts, such as generate in the dual form on Hopper.
"""

from importlib import import_module
from typing import Any

from torch import Tensor

from bench.models.config import ROPE_THETA
from bench.models.layers import Rotation
from bench.models.operator import (
    Learner,
    Projections,
    TorchOperator,
    learning_rates,
    outer_parameters,
    ready_for_prefill,
)
from tk_kernels.generate.common import rope_table


class KernelOperator(TorchOperator):
    """Run the kernels for a learner ("linear", "mlp").

    form, precision: those of the generate state; see `tk_kernels.ttt_linear.generate`.
    prefill_on_reference: whether forward runs in PyTorch, for systems that only measure generate.
    backend: the forward kernel's, such as "triton"; "" takes the fastest that runs here.
    """

    def __init__(
        self,
        learner: str,
        form: str = "dual",
        precision: str = "planes",
        prefill_on_reference: bool = False,
        backend: str = "",
    ) -> None:
        super().__init__(learner)
        self._generate = import_module(f"tk_kernels.ttt_{learner}.generate")
        self._forward = None if prefill_on_reference else import_module(f"tk_kernels.ttt_{learner}.ops").forward
        self.block_a_head = self._forward is not None
        self._generate_form, self._precision, self._backend = form, precision, backend
        self._table_of: Tensor | None = None

    def forward(self, projections: Projections, learner: Learner, state: Any, start: int | None = None) -> Tensor:
        """Run forward in a kernel, or in PyTorch with `prefill_on_reference`. Given `start`, there is no host sync."""
        if self._forward is None:
            return super().forward(projections, learner, state, start)
        rope = not projections.ready and learner.rope_theta == ROPE_THETA  # the kernel's own RoPE has this theta only
        if not (rope or projections.ready):
            projections = ready_for_prefill(projections, learner, state.position)
        q, k, v = projections[:3]
        lr = learning_rates(projections, learner)
        outer = outer_parameters(learner)
        options = {"start": start, "rope": rope, "inplace": True, "backend": self._backend}
        return self._forward(q, k, v, lr, *outer, state, **options)[0]

    def generate_state(self, state: Any) -> Any:
        """Copy forward's state into the generate kernel's form and precision; return a generate state as it is."""
        if isinstance(state, self._generate.GenerateState):
            return state
        return self._generate.GenerateState.from_state(state, self._generate_form, self._precision)

    def generate_step(self, projections: Projections, learner: Learner, state: Any) -> Tensor:
        """Run one step in a kernel, which also computes RoPE and learning rates unless the projections are `ready`."""
        inputs = *projections[:4], *outer_parameters(learner), state
        if projections.ready:
            return self._generate.generate_step(*inputs, pdl=projections.pdl)
        return self._generate.generate_step(*inputs, rope=self._rope_table(learner.rope), base_lr=learner.base_lr)

    def _rope_table(self, rope: Rotation) -> Tensor:
        """Return the rotation in the generate kernel's layout [m, 2, D], cached for all layers and steps."""
        if self._table_of is not rope[0]:
            self._table, self._table_of = rope_table(*rope), rope[0]
        return self._table
