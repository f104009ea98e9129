"""Run a TTT model, or one TTT layer, on the PyTorch reference kernels."""

from typing import Any

from bench.systems.ttt import layer
from bench.systems.ttt.model import TTTLanguageModel, model_of
from harness.measure.system import Workload
from harness.schema.case import Case


class TTTTorch(TTTLanguageModel):
    """Adapter of ttt-linear/torch and ttt-mlp/torch, in the dual form; a generate step computes one of its rows."""

    def build(self, case: Case) -> Workload:
        """Build the whole model, or with scope=layer its inner operator alone."""
        return layer.build(case) if case.option("scope", "model") == "layer" else super().build(case)

    def load(self, case: Case) -> Any:
        """Load the model with PyTorch blocks, without fused kernels."""
        return model_of(case)
