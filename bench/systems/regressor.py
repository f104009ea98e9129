"""Time and check the forward of a package's recurrent layer, from an empty state.

Only the sequence mixer is measured: no projections, convolutions or output gating.
Shapes: B sequences, T tokens per sequence, H heads.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from bench.systems.needs import cannot_import, import_or_skip, no_gpu
from bench.systems.on_device import device
from bench.systems.triton_tuning import prepare, retuning
from bench.systems.ttt.layer import LAYER_CHECK_TOKENS, Results, check_results, layer_workload
from harness.measure.correctness import Checks
from harness.measure.cuda_clock import CudaEventClock
from harness.measure.system import Input, Skip, Workload
from harness.measure.timer import Clock, measure
from harness.schema.case import Case
from harness.schema.policy import Policy
from harness.schema.work import SCAN, Work

SIZE = "1.3b"  # the only supported size
MAX_LOG_DECAY = 0.1  # log-decays are uniform in [-MAX_LOG_DECAY, 0]
TIMED_CHECK_TOKENS = 4096  # compared tokens after timing: naive forms launch kernels for each token
TRIAL = Policy(budget_s=0.2)  # times each kernel of a layer that has several


class RandomInput(NamedTuple):
    """A layer's random input, with the rules to refill it and to slice it for checks.

    refill: new values are "normal" (standard deviation `scale`) or "uniform" (0 to `scale`); "" for a constant input.
    axis: index of the token axis. 0: the input varies by sequence, not by token. None: all sequences share the input.
    rows: number of entries along `axis` per token.
    """

    value: Tensor
    refill: str = ""
    scale: float = 1.0
    axis: int | None = 1
    rows: int = 1

    def first(self, sequences: list[int], tokens: int) -> Tensor:
        """Return the input's part for these sequences (indices) and their first `tokens` tokens."""
        if self.axis is None:
            return self.value
        some = self.value.narrow(self.axis, 0, tokens * self.rows) if self.axis else self.value
        return some[sequences].contiguous()


@dataclass(frozen=True)
class RecurrentLayer(ABC):
    """Base class of a recurrent layer: kernel, sizes, random inputs and naive implementation.

    kernel: MODULE:FUNCTION, or MODULE:FUNCTION|FUNCTION for alternatives; for each case, the fastest is timed.
    check_tokens: most tokens compared before timing, in one sequence.
    timed_check_tokens: most tokens compared after timing, in all sequences together.
    part: the part of the model, such as SCAN, to which a profile assigns the layer's work.
    """

    kernel: str
    heads: int
    key_dim: int
    value_dim: int
    check_tokens: ClassVar[int] = LAYER_CHECK_TOKENS + 1  # past a chunk's end
    timed_check_tokens: ClassVar[int] = TIMED_CHECK_TOKENS
    part: ClassVar[str] = SCAN
    settings: ClassVar[Mapping[str, str]] = {}  # additional settings for the record

    @property
    def state_elements(self) -> int:
        """Number of elements in one sequence's state."""
        return self.heads * self.key_dim * self.value_dim

    @abstractmethod
    def work(self, case: Case) -> Work:
        """Return a case's FLOPs and minimum memory traffic in bytes."""

    @abstractmethod
    def random_inputs(self, case: Case) -> dict[str, RandomInput]:
        """Return random inputs by name. Raises Skip if the kernel cannot run the case."""

    @abstractmethod
    def run(self, kernel: Callable[..., Any], inputs: dict[str, Tensor]) -> Results:
        """Call the kernel; return "output" [B, T, H, value_dim] and the final states [B, ...]."""

    @abstractmethod
    def naive(self, **inputs: Tensor) -> Results:
        """Compute the results of `run` from the layer's definition, in float32 or float64."""


class LayerAdapter:
    """Base class of adapters that measure a package's recurrent layers.

    module: the package's import name. packages: distributions whose versions are recorded. layers: by system.
    """

    module: ClassVar[str]
    packages: tuple[str, ...]
    layers: ClassVar[dict[str, RecurrentLayer]]

    def unavailable(self) -> str:
        return no_gpu() or cannot_import(self.module)

    def build(self, case: Case) -> Workload:
        if case.size != SIZE:
            raise Skip(f"{case.system} supports only the size {SIZE}")
        layer = self.layers[case.system]
        module, _, names = layer.kernel.partition(":")
        import_or_skip(module)
        kernels = [getattr(import_module(module), name) for name in names.split("|")]
        randoms = layer.random_inputs(case)
        inputs = {name: each.value for name, each in randoms.items()}

        def first(sequences: list[int], tokens: int) -> dict[str, Tensor]:
            return {name: each.first(sequences, tokens) for name, each in randoms.items()}

        @torch.inference_mode()
        def run(kernel: Callable[..., Any]) -> Results:
            return layer.run(kernel, inputs)

        kernel, trials = _fastest(kernels, run)

        @torch.inference_mode()
        def exact(sequences: list[int], tokens: int) -> Results:
            return layer.naive(**first(sequences, tokens))

        @torch.inference_mode()
        def check() -> Checks:
            tokens = min(layer.check_tokens, case.context)
            found = layer.run(kernel, first([0], tokens))
            return check_results(found, exact([0], tokens), case.dtype)

        settings = {"kernel": kernel.__name__, "tuned": "on this case", **trials, **layer.settings}
        work, timed = {layer.part: layer.work(case)}, partial(run, kernel)
        refilled = {
            name: Input(each.value, each.refill, each.scale, 0, each.axis if each.rows == 1 else None)
            for name, each in randoms.items()
            if each.refill
        }
        workload = layer_workload(case, timed, refilled, exact, check, work, settings, layer.timed_check_tokens)
        workload.metrics["state_bytes"] = 4 * case.batch * layer.state_elements
        return workload


def _fastest(
    kernels: Sequence[Callable[..., Any]], run: Callable[..., object]
) -> tuple[Callable[..., Any], dict[str, str]]:
    """Tune the kernels and, if several, time them; return (the fastest, settings to record)."""
    took: dict[Callable[..., Any], float] = {}
    with retuning():  # once: a second context would discard the first kernel's choice
        for kernel in kernels:
            prepare(partial(run, kernel))
            if len(kernels) > 1:
                clock = CudaEventClock() if device() == "cuda" else Clock()
                took[kernel] = median(measure(partial(run, kernel), clock, TRIAL).samples_ms)
    if not took:
        return kernels[0], {}
    trials = "; ".join(f"{kernel.__name__} {ms:.4g} ms" for kernel, ms in took.items())
    return min(took, key=lambda kernel: took[kernel]), {"form_trials": trials}
