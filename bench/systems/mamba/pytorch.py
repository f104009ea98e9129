"""Run transformers' Mamba in plain PyTorch on a CPU, without custom kernels."""

from typing import Any

import torch

from bench.systems.language_model import LanguageModel
from bench.systems.mamba.scan import ScannedMamba
from bench.systems.on_device import device
from harness.schema.case import Case


class TorchMamba(LanguageModel):
    """Adapter of mamba/torch: transformers' Mamba in plain PyTorch, on a CPU only."""

    packages = ("transformers",)

    def unavailable(self) -> str:
        if device() == "cuda":
            return "transformers' Mamba is unavailable on CUDA: use mamba/mamba-ssm there"
        return ""

    def timed_check_reference(self, model: Any, dtype: torch.dtype, case: Case) -> Any:
        """Return a `ScannedMamba` with the same weights; it shares no scan code with the model."""
        return ScannedMamba(self.reference(model, dtype).inner, device())

    def rounded_reference(self, model: Any, case: Case) -> Any:
        return None if case.dtype == "float32" else self.reference(model, getattr(torch, case.dtype))
