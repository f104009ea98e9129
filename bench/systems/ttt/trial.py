"""Find the fastest launch settings of a Triton kernel on this GPU: check, then time, one layer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any

import torch

from bench.models.config import TTTConfig, model_config
from bench.systems.ttt.kernel_layer import (
    KERNEL_GATE_SEQUENCES,
    OUTER,
    GenerateSet,
    generate_set,
    generate_verdict,
    steps_in_turn,
)
from bench.systems.ttt.layer import PER_TOKEN, forward_verdict, inputs_of, layer_inputs
from harness.measure.cuda_clock import CudaEventClock
from harness.measure.timer import Clock, measure
from harness.schema.policy import Policy
from tk_kernels.build.parallel import compile_all
from tk_kernels.generate.common import SM90, section_name
from tk_kernels.generate.tuning import FORWARD, Tuning, candidates

SIZE = "1.3b"
FORWARD_SIZES = {"wide": "760m"}  # by row of `tuning.toml`, else SIZE; wide: heads of 96
FORWARD_BATCHES = {"few": 1}
FORWARD_TOKENS, CHECKED_TOKENS = 2048, 128
POLICY = Policy(budget_s=0.5)


def replays() -> Clock:
    """Return the clock of the generate figures, which times graph replays."""
    return CudaEventClock("graph")


@dataclass(frozen=True)
class Trial:
    """The tuning of generate in one form and state precision, on a 1.3B layer with `batch` sequences."""

    learner: str
    form: str
    precision: str
    batch: int = 512
    clock: Callable[[], Clock] = replays

    def fastest(self, log: Callable[[str], object]) -> tuple[str, Tuning | None]:
        """Return this GPU's section of `tuning.toml` and the fastest correct settings, or None.

        log: takes a line for each candidate, with its time or its error.
        """
        some = self._sequences()
        name = some.state.tuned_as()
        tried = list(candidates(f"ttt_{self.learner}", self.form, self.precision, sm90=name.startswith(SM90)))
        _compile(some, tried)
        took: dict[Tuning, float] = {}
        for launch in tried:
            fault = self._fault(launch)
            if not fault:
                took[launch] = self._step_us(launch)
            log(f"ttt-{self.learner} {self.form} {self.precision} {launch}: {fault or f'{took[launch]:.1f} us'}")
        return name, min(took, key=lambda launch: took[launch], default=None)

    @property
    def _config(self) -> TTTConfig:
        config = model_config(f"ttt-{self.learner}", SIZE)
        assert isinstance(config, TTTConfig)
        return config

    @property
    def _dtype(self) -> str:
        """Dtype of the tokens in the figures that use this state precision."""
        return "float32" if self.precision == "float32" else "bfloat16"

    def _sequences(self) -> GenerateSet:
        return generate_set(self._config, self.batch, self._dtype, self.form, self.precision)

    def _fault(self, launch: Tuning) -> str:
        """Return why these settings fail (no launch, or incorrect outputs); "" if they work."""
        from triton.runtime.errors import OutOfResources, PTXASError

        sequences = min(self.batch, KERNEL_GATE_SEQUENCES)
        try:
            return generate_verdict(self._config, sequences, self._dtype, self.form, self.precision, launch).reason
        except (OutOfResources, PTXASError) as error:
            return " ".join(str(error).split())

    def _step_us(self, launch: Tuning) -> float:
        """Return the time of a step in µs, on new sequences: a state after thousands of steps is another load."""
        work = steps_in_turn(replace(self._sequences(), launch=launch), self._config, self._dtype)
        return median(measure(work.run, self.clock(), POLICY).samples_ms) * 1e3 / work.units


@dataclass(frozen=True)
class ForwardTrial:
    """The tuning of the portable forward for one row of `tuning.toml`, on a layer of a shape that the row serves."""

    learner: str
    row: str
    clock: Callable[[], Clock] = replays

    def fastest(self, log: Callable[[str], object]) -> tuple[str, Tuning | None]:
        """Return the section of `tuning.toml` and the fastest correct settings, or None; as `Trial.fastest`."""
        config = model_config(f"ttt-{self.learner}", FORWARD_SIZES.get(self.row, SIZE))
        assert isinstance(config, TTTConfig)
        inputs = layer_inputs(config, FORWARD_BATCHES.get(self.row, 16), FORWARD_TOKENS, torch.bfloat16)
        tried = list(candidates(f"ttt_{self.learner}", FORWARD, self.row))
        compile_all(partial(self._launch, inputs, launch, compile_only=True) for launch in tried)
        took: dict[Tuning, float] = {}
        for launch in tried:
            fault = self._fault(inputs, launch)
            if not fault:
                run = partial(self._launch, inputs, launch)
                took[launch] = median(measure(run, self.clock(), POLICY).samples_ms) * 1e3
            log(f"ttt-{self.learner} forward {self.row} {launch}: {fault or f'{took[launch]:.1f} us'}")
        name = section_name(False, inputs["q"].device)
        return name, min(took, key=lambda launch: took[launch], default=None)

    def _launch(self, inputs: dict[str, Any], launch: Tuning, **options: bool) -> tuple[torch.Tensor, Any]:
        """Run the kernel with these launch settings; return its outputs and the state after the last token."""
        kernel = import_module(f"tk_kernels.ttt_{self.learner}.forward").launch
        state = inputs["state"]
        out, after = torch.empty_like(inputs["q"]), type(state)(*map(torch.empty_like, state))
        weights = tuple(x for name, x in state._asdict().items() if name[0] in "Wb")
        outer = tuple(inputs[name] for name in OUTER)
        kernel(tuple(inputs[name] for name in PER_TOKEN), outer, weights, (out, *after[:-1]), False, launch, **options)
        return out, after

    def _fault(self, inputs: dict[str, Any], launch: Tuning) -> str:
        """Return why these settings fail; "" if they work."""
        from triton.runtime.errors import OutOfResources, PTXASError

        reference = import_module(f"tk_kernels.ttt_{self.learner}.reference")
        piece = inputs_of(inputs, slice(1), CHECKED_TOKENS)
        try:
            return forward_verdict(lambda some: self._launch(some, launch), reference, "dual", piece).reason
        except (OutOfResources, PTXASError) as error:
            return " ".join(str(error).split())


def _compile(some: GenerateSet, launches: Iterable[Tuning]) -> None:
    """Compile the step with all these settings in parallel; the correctness check reports those that do not compile."""
    compile_all(partial(replace(some, launch=launch).advance, 0, compile_only=True) for launch in launches)
