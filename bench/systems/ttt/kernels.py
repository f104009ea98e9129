"""Run a TTT model or layer on this repository's ThunderKittens or Triton kernels."""

from collections.abc import Collection
from importlib import import_module
from typing import Any

from bench.kept import generate_precision
from bench.models.case_model import ttt_config_of
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from bench.systems.model_calls import model_of
from bench.systems.ttt import kernel_layer
from bench.systems.ttt.model import TTTLanguageModel
from harness.measure.system import Skip, Workload
from harness.schema.case import Case
from tk_kernels.edges import few_rows, swiglu_product
from tk_kernels.forward.common import MINI_BATCHES
from tk_kernels.forward.operator import HEAD_DIM, HEAD_DIMS, THUNDERKITTENS, TRITON
from tk_kernels.ttt_mlp.generate import IN_REGISTERS


class TTTKernels(TTTLanguageModel):
    """Adapter of TTT-Linear or TTT-MLP on this repository's kernels.

    learner: "linear" or "mlp". form: form of the generate steps, "dual" or "primal".
    `prefill`: backend of the forward kernel, THUNDERKITTENS or TRITON; "" for a forward in PyTorch.
    """

    packages = ("triton", "apache-tvm-ffi")

    def __init__(self, learner: str, form: str = "dual", prefill: str = "") -> None:
        super().__init__()
        self.learner, self.form, self.prefill = learner, form, prefill

    def unavailable(self) -> str:
        modules = ["ops", "generate"] if self.prefill == THUNDERKITTENS else ["generate"]
        reasons = (import_module(f"tk_kernels.ttt_{self.learner}.{module}").available() for module in modules)
        return next(filter(None, reasons), "")

    def build(self, case: Case) -> Workload:
        self._refuse_other_functions(case)
        if case.option("scope", "model") == "layer":
            return kernel_layer.build(case, self.form, generate_precision(case), self.prefill)
        return super().build(case)

    def load(self, case: Case) -> Any:
        precision = generate_precision(case)
        operator = KernelOperator(self.learner, self.form, precision, not self.prefill, self.prefill)
        return model_of(case, operator=operator, block=FusedBlock)

    def settings(self, case: Case) -> dict[str, str]:
        few, many = few_rows.MOST_ROWS_FEW_OUTPUTS, few_rows.MOST_ROWS
        fused = f" and from {swiglu_product.LEAST_ROWS} rows on"
        return super().settings(case) | {
            "products": f"of 16 bits in Triton up to {few} rows, where outputs are many {many}",
            "swiglu": f"in those products{'' if swiglu_product.available() else fused}",
        }

    def _refuse_other_functions(self, case: Case) -> None:
        config = ttt_config_of(case)
        refused = [f"{name}={value}" for name in ("form", "part") if (value := case.option(name))]
        mini_batches, head_dims = self._supported_sizes()
        if config.mini_batch not in mini_batches:
            refused.append(f"mini-batches of {config.mini_batch} tokens")
        if config.head_dim not in head_dims:
            refused.append(f"heads of {config.head_dim} channels")
        if refused:
            raise Skip(f"{case.system_backend} has no {' and no '.join(refused)}; {case.system}/torch has")

    def _supported_sizes(self) -> tuple[Collection[int], Collection[int]]:
        if self.prefill == THUNDERKITTENS:
            return tuple(import_module(f"tk_kernels.ttt_{self.learner}.ops").KERNELS), (HEAD_DIM,)
        if self.prefill == TRITON:
            return MINI_BATCHES, HEAD_DIMS
        most = IN_REGISTERS if (self.learner, self.form) == ("mlp", "primal") else HEAD_DIMS[-1]
        return MINI_BATCHES, range(1, most + 1)
