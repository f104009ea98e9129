"""Run transformers' own Mamba: its PyTorch path, which needs no kernels and runs on a CPU."""

from typing import Any

import torch

from bench.models.config import MambaConfig, model_config
from bench.systems.language_model import LanguageModel, device
from bench.systems.mamba.scan import ScannedMamba
from harness.case import Case


class TorchMamba(LanguageModel):
    """mamba/torch."""

    def unavailable(self) -> str:
        """A figure of a GPU is not to be drawn from a path that nobody would run on one."""
        if device() == "cuda":
            return "transformers' Mamba is the CPU's baseline; on a GPU mamba/mamba-ssm is"
        return ""

    def load(self, case: Case) -> Any:
        """Random weights by seed."""
        from bench.models.mamba import Mamba

        config = model_config("mamba", case.size)
        assert isinstance(config, MambaConfig)
        return Mamba.from_seed(config, 0, device(), getattr(torch, case.dtype))

    def witness_reference(self, model: Any, dtype: torch.dtype) -> Any:
        """The same weights by a scan in chunks, which shares no code with what is timed."""
        return ScannedMamba(self.reference(model, dtype).inner, device())
