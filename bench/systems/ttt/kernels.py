"""Run a TTT model or layer on this repository's ThunderKittens or Triton kernels."""

from collections.abc import Collection
from importlib import import_module
from typing import Any

from bench.models.case_model import ttt_config_of
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from bench.state_size import generate_precision
from bench.systems.model_calls import model_of
from bench.systems.ttt import kernel_layer
from bench.systems.ttt.model import TTTLanguageModel
from harness.measure.system import Skip, Workload
from harness.schema.case import Case
from tk_kernels.edges import few_rows, swiglu_product
from tk_kernels.forward.common import MINI_BATCHES
from tk_kernels.forward.operator import HEAD_DIM, HEAD_DIMS, THUNDERKITTENS, TRITON
from tk_kernels.ttt_mlp.generate import MAX_HEAD_DIM_IN_REGISTERS


class TTTKernels(TTTLanguageModel):
    """Adapter of TTT-Linear or TTT-MLP on this repository's kernels.

    learner: "linear" or "mlp". form: form of the generate steps, "dual" or "primal".
    forward_backend: THUNDERKITTENS or TRITON; "" for a forward in PyTorch.
    """

    packages = ("triton", "apache-tvm-ffi")

    def __init__(self, learner: str, form: str = "dual", forward_backend: str = "") -> None:
        super().__init__()
        self.learner, self.form, self.forward_backend = learner, form, forward_backend

    def unavailable(self) -> str:
        modules = ["ops", "generate"] if self.forward_backend == THUNDERKITTENS else ["generate"]
        reasons = (import_module(f"tk_kernels.ttt_{self.learner}.{module}").available() for module in modules)
        return next(filter(None, reasons), "")

    def build(self, case: Case) -> Workload:
        self._skip_unsupported(case)
        if case.option("scope", "model") == "layer":
            return kernel_layer.build(case, self.form, generate_precision(case), self.forward_backend)
        return super().build(case)

    def load(self, case: Case) -> Any:
        precision = generate_precision(case)
        operator = KernelOperator(self.learner, self.form, precision, not self.forward_backend, self.forward_backend)
        return model_of(case, operator=operator, block=FusedBlock)

    def settings(self, case: Case) -> dict[str, str]:
        few, many = few_rows.MOST_ROWS_FEW_OUTPUTS, few_rows.MOST_ROWS
        fused = f" and into GEMMs of {swiglu_product.LEAST_ROWS} rows or more"
        return super().settings(case) | {
            "products": f"16-bit GEMMs in Triton up to {few} rows, or {many} from {few_rows.MANY_OUTPUTS} outputs on",
            "swiglu": f"fused into those GEMMs{'' if swiglu_product.available() else fused}",
        }

    def _skip_unsupported(self, case: Case) -> None:
        config = ttt_config_of(case)
        unsupported = [f"{name}={value}" for name in ("form", "part") if (value := case.option(name))]
        mini_batches, head_dims = self._supported_sizes()
        if config.mini_batch not in mini_batches:
            unsupported.append(f"mini-batches of {config.mini_batch} tokens")
        if config.head_dim not in head_dims:
            unsupported.append(f"heads of {config.head_dim} channels")
        if unsupported:
            raise Skip(f"{case.system_backend} does not support {' or '.join(unsupported)}; {case.system}/torch does")

    def _supported_sizes(self) -> tuple[Collection[int], Collection[int]]:
        if self.forward_backend == THUNDERKITTENS:
            return tuple(import_module(f"tk_kernels.ttt_{self.learner}.ops").KERNELS), (HEAD_DIM,)
        if self.forward_backend == TRITON:
            return MINI_BATCHES, HEAD_DIMS
        most = MAX_HEAD_DIM_IN_REGISTERS if (self.learner, self.form) == ("mlp", "primal") else HEAD_DIMS[-1]
        return MINI_BATCHES, range(1, most + 1)
