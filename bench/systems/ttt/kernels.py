"""Run a TTT model, or one TTT layer, on the project's kernels: ThunderKittens forward, Triton generate."""

from importlib import import_module
from typing import Any, ClassVar

import torch

from bench.cost import model_work
from bench.models.config import TTTConfig, model_config
from bench.models.fused import FusedBlock
from bench.models.kernel_operator import KernelOperator
from bench.models.ttt import TTTModel
from bench.systems.language_model import LanguageModel, device
from bench.systems.ttt import kernel_layer
from bench.systems.ttt.drift import compared
from bench.systems.ttt.pytorch import primal_reference
from harness.case import Case
from harness.system import Skip, Workload
from harness.work import Work

# How a state_dtype of the suites is kept; "float32-planes" is the float32 master in two 16-bit planes.
PRECISION_OF = {"float32": "float32", "float32-planes": "planes", "bfloat16": "bfloat16", "float16": "float16"}


class TTTKernels(LanguageModel):
    """One learner on one kernel for prefill and one form of generate."""

    learner: ClassVar[str]
    form: ClassVar[str] = "dual"
    prefill_on_reference: ClassVar[bool] = False

    def unavailable(self) -> str:
        """What the kernels miss here: a Hopper GPU, nvcc or a build of them, ThunderKittens, Triton."""
        modules = ["generate"] if self.prefill_on_reference else ["ops", "generate"]
        reasons = [import_module(f"tk_kernels.ttt_{self.learner}.{module}").available() for module in modules]
        return next((reason for reason in reasons if reason), "")

    def build(self, case: Case) -> Workload:
        """The whole model, or with the option scope=layer the kernel alone. Skip for what the kernels do not do."""
        _refuse_other_functions(case)
        if case.option("scope", "model") == "layer":
            return kernel_layer.build(case, self.form, PRECISION_OF[case.state_dtype])
        workload = super().build(case)
        return compared(self, workload, self._model(case), case) if case.option("compare", "") else workload

    def load(self, case: Case) -> Any:
        """Random weights by seed."""
        config = model_config(f"ttt-{self.learner}", case.size)
        assert isinstance(config, TTTConfig)
        precision = PRECISION_OF[case.state_dtype]
        operator = KernelOperator(self.learner, self.form, precision, self.prefill_on_reference)
        dtype = getattr(torch, case.dtype)
        return TTTModel.from_seed(config, 0, device(), dtype, operator=operator, block=FusedBlock)

    def cost(self, model: Any, case: Case) -> dict[str, Work]:
        """In this form of generate."""
        return model_work(model.config, self._facts(model).parameters, case, self.form)

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The primal form in PyTorch."""
        return primal_reference(super().reference(model, dtype))

    def witness_reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The dual form in PyTorch: the primal form materialises a W for every token."""
        return super().reference(model, dtype)


def _refuse_other_functions(case: Case) -> None:
    """A kernel that ignored an option would be measured under the name of a function that it does not compute."""
    for name, only in (("mini_batch", 16), ("form", None), ("part", None)):
        value = case.option(name, only)
        if value != only:
            raise Skip(f"{case.system_backend} has no {name}={value}; {case.system}/torch has")


class LinearThunderKittens(TTTKernels):
    """ttt-linear/thunderkittens."""

    learner = "linear"


class MLPThunderKittens(TTTKernels):
    """ttt-mlp/thunderkittens."""

    learner = "mlp"


class LinearTritonDual(TTTKernels):
    """ttt-linear/triton-dual."""

    learner, prefill_on_reference = "linear", True


class MLPTritonDual(TTTKernels):
    """ttt-mlp/triton-dual."""

    learner, prefill_on_reference = "mlp", True


class LinearTritonPrimal(LinearTritonDual):
    """ttt-linear/triton-primal: the paper's form."""

    form = "primal"


class MLPTritonPrimal(MLPTritonDual):
    """ttt-mlp/triton-primal: the paper's form."""

    form = "primal"
