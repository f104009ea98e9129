"""Measure which launch settings make a generate kernel fastest on this GPU: one layer of 1.3B, gated, then timed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from bench.models.config import TTTConfig, model_config
from bench.systems.ttt.kernel_layer import (
    KERNEL_GATE_SEQUENCES,
    GenerateSet,
    generate_set,
    generate_verdict,
    steps_in_turn,
)
from harness.measure.cuda_clock import CudaEventClock
from harness.measure.timer import Clock, measure
from harness.schema.policy import Policy
from tk_kernels.build.parallel import compile_all
from tk_kernels.generate.common import SM90
from tk_kernels.generate.tuning import Tuning, candidates

SIZE = "1.3b"
POLICY = Policy(budget_s=0.5)


def replays() -> Clock:
    """The clock of the generate figures."""
    return CudaEventClock("graph")


@dataclass(frozen=True)
class Trial:
    """`batch` sequences that generate by one layer of 1.3B, in a form and a precision of the state."""

    learner: str
    form: str
    precision: str
    batch: int = 512
    clock: Callable[[], Clock] = replays

    def fastest(self, log: Callable[[str], object]) -> tuple[str, Tuning | None]:
        """The section of `tuning.toml` that this GPU reads, and the fastest settings that pass the gate, if any do.

        log: takes a line for each candidate, with its time or its fault.
        """
        some = self._sequences()
        name = some.generate.tuned_as(some.state)
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
        """Of the tokens: that of the figures with this state."""
        return "float32" if self.precision == "float32" else "bfloat16"

    def _sequences(self) -> GenerateSet:
        return generate_set(self._config, self.batch, self._dtype, self.form, self.precision)

    def _fault(self, launch: Tuning) -> str:
        """Why these settings cannot be used: they cannot be launched, or miss the gate; "" where they can."""
        from triton.runtime.errors import OutOfResources, PTXASError

        sequences = min(self.batch, KERNEL_GATE_SEQUENCES)
        try:
            return generate_verdict(self._config, sequences, self._dtype, self.form, self.precision, launch).reason
        except (OutOfResources, PTXASError) as error:
            return " ".join(str(error).split())

    def _step_us(self, launch: Tuning) -> float:
        """Of one step; the sequences are new, as a state that went through thousands of steps is another load."""
        work = steps_in_turn(replace(self._sequences(), launch=launch), self._config, self._dtype)
        return median(measure(work.run, self.clock(), POLICY).samples_ms) * 1e3 / work.units


def _compile(some: GenerateSet, launches: Iterable[Tuning]) -> None:
    """Side by side; a candidate that cannot be compiled is left for the gate to report."""
    compile_all(partial(replace(some, launch=launch).advance, 0, compile_only=True) for launch in launches)
