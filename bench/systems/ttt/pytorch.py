"""Run a TTT model, or one TTT layer, on the PyTorch reference kernels."""

from typing import Any

from bench.systems.ttt import layer
from bench.systems.ttt.model import TTTLanguageModel, model_of
from harness.measure.system import Workload
from harness.schema.case import Case


class TTTTorch(TTTLanguageModel):
    """ttt-linear/torch and ttt-mlp/torch: the dual form for forward, its rows for generate."""

    def build(self, case: Case) -> Workload:
        """Build the whole model, or with scope=layer its inner operator alone."""
        return layer.build(case) if case.option("scope", "model") == "layer" else super().build(case)

    def load(self, case: Case) -> Any:
        """Load the model with plain blocks."""
        return model_of(case)
