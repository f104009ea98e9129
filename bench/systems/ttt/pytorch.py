"""Run a TTT model, or one TTT layer, on the PyTorch reference kernels."""

from typing import Any, ClassVar

import torch

from bench.models.config import TTTConfig, model_config
from bench.models.operator import TorchOperator
from bench.models.ttt import TTTModel
from bench.systems.language_model import LanguageModel, device
from bench.systems.ttt import layer
from bench.systems.ttt.drift import compared
from harness.case import Case
from harness.system import Workload


class TTTTorch(LanguageModel):
    """The dual form for prefill, its rows for generate; the gate's reference is the primal form."""

    system: ClassVar[str]

    def build(self, case: Case) -> Workload:
        """The whole model, or with the option scope=layer its inner operator alone."""
        if case.option("scope", "model") == "layer":
            return layer.build(case)
        workload = super().build(case)
        return compared(self, workload, self._model(case), case) if case.option("compare", "") else workload

    def load(self, case: Case) -> Any:
        """Random weights by seed."""
        config = model_config(self.system, case.size, mini_batch=int(case.option("mini_batch", 16)))
        assert isinstance(config, TTTConfig)
        return TTTModel.from_seed(config, 0, device(), getattr(torch, case.dtype))

    def reference(self, model: Any, dtype: torch.dtype) -> Any:
        """Every gradient and every W_t materialised."""
        return primal_reference(super().reference(model, dtype))

    def witness_reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The dual form in a wider type: the primal form materialises a W for every token."""
        return super().reference(model, dtype)


def primal_reference(model: TTTModel) -> TTTModel:
    """The model with its inner loop in the primal form of the reference."""
    model.operator = TorchOperator(model.config.learner, form="primal")
    return model


class TTTLinear(TTTTorch):
    """ttt-linear/torch."""

    system = "ttt-linear"


class TTTMLP(TTTTorch):
    """ttt-mlp/torch."""

    system = "ttt-mlp"
