"""Measure one recurrent layer of a package: the forward of whole sequences from an empty state.

A layer is its sequence mixer alone, as in TTT's layers: projections, convolutions and output gating are left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from random import Random
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.cost import total
from bench.systems.checked_sequences import drawn
from bench.systems.measured_peaks import peaks_of
from bench.systems.needs import cannot_find, import_or_skip, no_gpu
from bench.systems.on_device import device
from bench.systems.triton_tuning import keep_choices, prepare
from bench.systems.ttt.layer import LAYER_CHECK_TOKENS, LAYER_LIMITS, TimedCheck, check_timed
from harness.measure.correctness import Check, Checks, relative_error
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
    def run(self, kernel: Callable[..., Any], inputs: dict[str, Tensor]) -> list[Tensor]:
        """Call the kernel; return outputs [B, T, H, V], then the final state in its tensors [B, ...]."""

    @abstractmethod
    def naive(self, **inputs: Tensor) -> list[Tensor]:
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
        def run() -> list[Tensor]:
            return layer.run(kernel, inputs)

        prepare(run)
        work = {SCAN: layer.work(case)}
        return Workload(
            run=run,
            tokens=case.batch * case.context,
            device=device(),
            inputs=layer.refilled(inputs),
            timed_check=_timed_check(layer, inputs, case),
            check=lambda: _check(layer, kernel, inputs, case),
            metrics=total(work).metrics() | peaks_of(device()) | {"state_bytes": 4 * case.batch * layer.state_numbers},
            work=work,
            settings={"kernel": name, "tuned": "on this case"},
        )


def _check(layer: Layer, kernel: Callable[..., Any], inputs: dict[str, Tensor], case: Case) -> Checks:
    piece = layer.first(inputs, [0], min(LAYER_CHECK_TOKENS + 1, case.context))  # past a chunk's end
    with torch.inference_mode():
        got, expected = layer.run(kernel, piece), layer.naive(**piece)
    limit = LAYER_LIMITS[case.dtype]
    named = zip(_names(expected), got, expected, strict=True)
    return Checks([Check.at_most(f"{name}_relative_error", relative_error(a, b), limit) for name, a, b in named])


def _timed_check(layer: Layer, inputs: dict[str, Tensor], case: Case) -> TimedCheck:
    """Check the first tokens of drawn sequences, and the final states of short ones."""

    def timed_check(rng: Random) -> Callable[[Any, int], Checks]:
        rows = drawn(rng, case.batch, case.context, CHECKED_TOKENS)
        tokens = min(case.context, CHECKED_TOKENS)

        def compare(outputs: list[Tensor], calls: int) -> Checks:
            with torch.inference_mode():
                expected = layer.naive(**layer.first(inputs, rows, tokens))
            found = [("output", outputs[0][rows, :tokens], expected[0])]
            if tokens == case.context:
                states = zip(_names(expected)[1:], outputs[1:], expected[1:], strict=True)
                return check_timed([*found, *((name, got[rows], exact) for name, got, exact in states)], case.dtype)
            rest = f"tokens after the first {tokens} were not checked: the reference reads one token at a time"
            return check_timed(found, case.dtype, rest)

        return compare

    return timed_check


def _names(results: list[Tensor]) -> list[str]:
    return ["output", "state", *(f"state_{i}" for i in range(2, len(results)))]
