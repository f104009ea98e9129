"""Measure Gated DeltaNet with heads of 128 channels on two packages' Hopper kernels: FlashQLA and FlashInfer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.systems.fla.regressors import QWEN, DeltaRule
from bench.systems.on_device import device
from bench.systems.regressor import Layer, Regressor
from harness.measure.system import Skip
from harness.schema.case import Case


@dataclass(frozen=True)
class Rounded(DeltaRule):
    """A delta rule whose kernel reads 16-bit tokens only."""

    def random_inputs(self, case: Case) -> dict[str, Tensor]:
        """Return the inputs of the delta rule. Raises Skip for float32."""
        if case.dtype == "float32":
            raise Skip(f"{case.backend} has Gated DeltaNet for bfloat16 and float16 only")
        return super().random_inputs(case)


@dataclass(frozen=True)
class Packed(Rounded):
    """The delta rule for FlashInfer, which reads all sequences one after the other.

    Beta and decays are float32; the decays are not logarithms, and the state is [B, H, V, K].
    """

    def random_inputs(self, case: Case) -> dict[str, Tensor]:
        """Return the delta rule's inputs, the decays, and the sequences' starts and end. Raises Skip for float32."""
        inputs = super().random_inputs(case)
        return self._packed(inputs | {"beta": inputs["beta"].float()})

    def first(self, inputs: dict[str, Tensor], rows: list[int], tokens: int) -> dict[str, Tensor]:
        by_token = {name: value for name, value in inputs.items() if name != "starts"}
        return self._packed(super().first(by_token, rows, tokens))

    def run(self, kernel: Callable[..., Any], inputs: dict[str, Tensor]) -> list[Tensor]:
        batch, tokens = inputs["q"].shape[:2]
        q, k, v, decay, beta = (inputs[name].flatten(0, 1) for name in ("q", "k", "v", "decay", "beta"))
        out, state = kernel(
            q, k, v, decay, beta, output_final_state=True, cu_seqlens=inputs["starts"], max_seqlen=tokens
        )
        return [out.unflatten(0, (batch, tokens)), state.mT]

    def naive(self, **inputs: Tensor) -> list[Tensor]:  # type: ignore[override]
        return super().naive(**{name: inputs[name] for name in ("q", "k", "v", "beta", "g")})

    def _packed(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        batch, tokens = inputs["q"].shape[:2]
        starts = tokens * torch.arange(batch + 1, dtype=torch.int32, device=device())
        return inputs | {"decay": inputs["g"].exp(), "starts": starts}


class FlashQla(Regressor):
    """Adapter of gated-deltanet-128/flash-qla."""

    module = "flash_qla"
    packages = ("flash-qla", "tilelang")
    layers: ClassVar[dict[str, Layer]] = {"gated-deltanet-128": Rounded("flash_qla:chunk_gated_delta_rule", *QWEN)}


class FlashInfer(Regressor):
    """Adapter of gated-deltanet-128/flashinfer."""

    module = "flashinfer"
    packages = ("flashinfer-python", "nvidia-cutlass-dsl")
    layers: ClassVar[dict[str, Layer]] = {
        "gated-deltanet-128": Packed("flashinfer.gdn_prefill:chunk_gated_delta_rule", *QWEN)
    }
