"""Measure one recurrent layer of a package: the forward of whole sequences from an empty state.

A layer is its sequence mixer alone, as in TTT's layers: projections, convolutions and output gating are left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.systems.needs import cannot_find, import_or_skip, no_gpu
from bench.systems.triton_tuning import keep_choices, prepare
from bench.systems.ttt.layer import LAYER_CHECK_TOKENS, Results, check_results, layer_workload
from harness.measure.correctness import Checks
from harness.measure.system import Input, Skip, Workload
from harness.schema.case import Case
from harness.schema.work import SCAN, Work

SIZE = "1.3b"  # the only size with published heads
LONGEST_DECAY = 0.1  # log-decays are uniform in [-0.1, 0]
CHECKED_TOKENS = 4096  # a token of a naive form takes ten launches


@dataclass(frozen=True)
class Layer(ABC):
    """A recurrent layer: its kernel (MODULE:FUNCTION), its heads, its random inputs and its naive form."""

    kernel: str
    heads: int
    key_dim: int
    value_dim: int

    @property
    def state_numbers(self) -> int:
        """Number of elements in one sequence's state."""
        return self.heads * self.key_dim * self.value_dim

    @abstractmethod
    def work(self, case: Case) -> Work:
        """Return FLOPs and least bytes of a case."""

    @abstractmethod
    def random_inputs(self, case: Case) -> dict[str, Tensor]:
        """Return the arguments of `run` and `naive` by name. Raises Skip if the kernel does not support the case."""

    @abstractmethod
    def refilled(self, inputs: dict[str, Tensor]) -> dict[str, Input]:
        """Return the inputs that the harness refills, by name."""

    @abstractmethod
    def first(self, inputs: dict[str, Tensor], rows: list[int], tokens: int) -> dict[str, Tensor]:
        """Return the inputs for the first `tokens` tokens of the sequences `rows`."""

    @abstractmethod
    def run(self, kernel: Callable[..., Any], inputs: dict[str, Tensor]) -> Results:
        """Call the kernel; return "output" [B, T, H, V], and the final state in its tensors [B, ...]."""

    @abstractmethod
    def naive(self, **inputs: Tensor) -> Results:
        """Return the same results from the definition of the layer, token by token, in at least float32."""


class Regressor:
    """Adapter of a package's layers; a subclass names them.

    module: the package's module. packages: distributions whose versions the record has. layers: by system.
    """

    module: ClassVar[str]
    packages: tuple[str, ...]
    layers: ClassVar[dict[str, Layer]]

    def unavailable(self) -> str:
        keep_choices()
        return no_gpu() or cannot_find(self.module)

    def build(self, case: Case) -> Workload:
        if case.size != SIZE:
            raise Skip(f"{case.system} supports only the size {SIZE}")
        layer = self.layers[case.system]
        module, _, name = layer.kernel.partition(":")
        import_or_skip(module)
        kernel, inputs = getattr(import_module(module), name), layer.random_inputs(case)

        @torch.inference_mode()
        def run() -> Results:
            return layer.run(kernel, inputs)

        @torch.inference_mode()
        def exact(rows: list[int], tokens: int) -> Results:
            return layer.naive(**layer.first(inputs, rows, tokens))

        @torch.inference_mode()
        def check() -> Checks:
            tokens = min(LAYER_CHECK_TOKENS + 1, case.context)  # past a chunk's end
            found = layer.run(kernel, layer.first(inputs, [0], tokens))
            return check_results(found, exact([0], tokens), case.dtype)

        prepare(run)
        settings = {"kernel": name, "tuned": "on this case"}
        work, refilled = {SCAN: layer.work(case)}, layer.refilled(inputs)
        workload = layer_workload(case, run, refilled, exact, check, work, settings, CHECKED_TOKENS)
        workload.metrics["state_bytes"] = 4 * case.batch * layer.state_numbers
        return workload
